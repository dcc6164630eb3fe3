"""The commands of developers: steps, locked packages, semgrep rules, counts; and every program loads by its name."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml

from broker_project.stack import model, test_command, trace, up
from broker_project.stack.folders import ROOT, AlreadyRunning, StackError, StackFolder, locked
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from broker_project.stack.model import CHECKS, HINTS_ONLY, MODEL, ModelCheck, check_model, judge
from broker_project.stack.test_command import (
    AUDITED_LOCKS,
    RULES_FOLDER,
    SERVER_PACKAGES,
    SHIPPED,
    WITH_BROKERS,
    Step,
    prepared,
    run_in_parallel,
)

PASSES_AND_FAILS = """
def test_passes(): pass
def test_fails(): assert False
"""

RULES: dict[str, dict[str, Any]] = {
    rule["id"]: rule
    for file in sorted((ROOT / RULES_FOLDER).glob("*.yaml"))
    for rule in yaml.safe_load(file.read_text())["rules"]
}

INTERRUPTS = """
import os, signal, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(600)
"""


def test_failed_step_does_not_stop_the_others(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(PASSES_AND_FAILS)
    pytest_here = ("-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:django", str(tests))
    found, crashed, fine = run_in_parallel(
        [
            Step("found", pytest_here, report="found.xml"),
            Step("crashed", ("-c", "raise SystemExit(3)"), report="none.xml"),
            Step("fine", ("-c", "")),
        ],
        {},
        tmp_path,
    )
    assert (found.ok, found.passed, found.failed) == (False, 1, 1)
    assert (crashed.ok, crashed.passed, crashed.failed) == (False, 0, 1)
    assert (fine.ok, fine.passed, fine.failed) == (True, 0, 0)


@pytest.mark.usefixtures("can_be_interrupted")
@pytest.mark.parametrize("niceness", [0, 3])
def test_steps_end_with_the_interrupted_command(tmp_path: Path, niceness: int) -> None:
    file = tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        run_in_parallel([Step("one", ("-c", INTERRUPTS, str(file)), niceness=niceness)], {}, tmp_path)
    assert not Path(f"/proc/{file.read_text()}").exists()


ENDS_IN_ORDER = """
import signal, sys, threading, time
from pathlib import Path
asked = threading.Event()
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: asked.set())
folder = Path(__file__).parent
(folder / "has begun").touch()
while not asked.wait(1.0):
    pass
time.sleep(0.5)
(folder / "has ended in order").touch()
sys.exit(7)
"""


MANAGE = (
    "import sys; from pathlib import Path; from broker_project.stack import up;"
    "up.ROOT = Path(sys.argv[1]); sys.exit(up.run_command(lambda: up._manage({})))"
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_manage_lets_the_command_end_in_order(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "manage.py").write_text(ENDS_IN_ORDER)
    command = [sys.executable, "-c", MANAGE, str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True) as manage:
        wait_until((tmp_path / "has begun").exists)
        if number == signal.SIGINT:
            os.killpg(manage.pid, number)  # as a terminal does
        else:
            manage.send_signal(number)
        assert manage.wait(PATIENCE_SECONDS) == 7
    assert (tmp_path / "has ended in order").exists()


IS_TOLD_TO_END = """
import sys, time
from pathlib import Path
folder = Path(__file__).parent
(folder / "has begun").touch()
while not (folder / "may end").exists():
    time.sleep(0.02)
sys.exit(7)
"""


def test_under_nohup_a_command_outlives_its_terminal(tmp_path: Path) -> None:
    (tmp_path / "manage.py").write_text(IS_TOLD_TO_END)
    command = ["nohup", sys.executable, "-c", MANAGE, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as manage:
        wait_until((tmp_path / "has begun").exists)
        os.killpg(manage.pid, signal.SIGHUP)  # as the end of a terminal does
        time.sleep(0.5)
        (tmp_path / "may end").touch()
        assert manage.wait(PATIENCE_SECONDS) == 7


def test_what_another_user_has_made_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(up, "STATE", tmp_path)

    def refused() -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "demo" / "stack.lock"))

    assert up.run_command(refused) == 1
    said = capsys.readouterr()
    assert f"{tmp_path}/demo/stack.lock belongs to another user: run as that user" in said.out + said.err


def test_tests_run_on_servers_of_their_own_whatever_variables_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_command, "STATE", tmp_path)
    of_the_operator = {"DATABASE_URL": "postgres://broker@127.0.0.1:1/broker", "REDIS_URL": "redis://127.0.0.1:1/0"}
    given = {**of_the_operator, "BROKER_RETENTION_DAYS": "1"}
    with mock.patch.dict(os.environ, given), prepared() as (_, variables):
        kept = [name for name in os.environ if name.startswith("BROKER_") or name in of_the_operator]
    assert kept == []
    assert variables["DATABASE_URL"].startswith("postgres://broker:")
    assert variables["REDIS_URL"].startswith("redis://:")


def test_fault_tests_are_in_the_folders_with_stacks() -> None:
    marked = {path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py") if "mark.faults" in path.read_text()}
    assert len(marked) > len(WITH_BROKERS)
    assert [str(path) for path in marked if not any(path.is_relative_to(folder) for folder in WITH_BROKERS)] == []
    assert {path.relative_to(ROOT) for path in ROOT.glob("tests/acceptance/test_*.py")} <= marked


def test_every_lock_is_audited() -> None:
    assert {lock for locks in AUDITED_LOCKS for lock in locks} == {
        lock.name for lock in (ROOT / "requirements").iterdir()
    }


@pytest.mark.parametrize(("ends", "status"), [("exit 0", 0), ("exit 1", 1), ("kill -9 $$", 1)])
def test_an_audit_of_one_lock_that_fails_or_is_killed_fails_the_audit(
    ends: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\ncase "$*" in *semgrep.txt*) exit 0;; *) {ends};; esac\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    assert test_command.audit() == status


def test_static_checks_cover_every_package() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert sorted(SHIPPED) == contracts["root_packages"]


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_excluded_files_of_semgrep_rules_exist(rule: dict[str, Any]) -> None:
    exceptions = rule.get("paths", {}).get("exclude", [])
    assert [path for path in exceptions if not _is_there(path)] == []


def _is_there(path: str) -> bool:
    if path.startswith("/"):
        return any(ROOT.glob(path[1:]))
    return any(found for package in SERVER_PACKAGES for found in Path(ROOT / package).rglob(path))


PROGRAMS = (
    "analytics.guard",
    "analytics.pipeline.__main__",
    "broker_project.read_only_flower",
    "broker_project.server.__main__",
    "broker_project.stack.demo.mailbox_reader",
    "broker_project.stack.set_up",
    "subscriptions.scripting.interpreter",
    "tests.support.faults.summarize",
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_program_loads_in_a_new_interpreter(program: str) -> None:
    variables = {**os.environ, "BROKER_WEB_THREADS": "1"}
    command = (sys.executable, "-c", f"import {program}")
    loaded = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (loaded.returncode, loaded.stderr) == (0, "")


@pytest.mark.lengthy
@pytest.mark.faults
def test_trace_follows_a_delivery_in_a_real_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trace, "FOLDER", tmp_path)
    with mock.patch.dict(os.environ):
        assert trace.trace() == 0
    printed = capsys.readouterr().out
    for file, function in (trace.CLAIM, trace.REQUEST, trace.WAIT, trace.RELEASE):
        assert file in printed
        assert function in printed or (file, function) in {trace.CLAIM, trace.RELEASE}
    assert re.search(r"^files from claim to release: \d+$", printed, re.M)
    assert re.search(r"^functions from an answer to the next request: \d+ in \d+ files$", printed, re.M)


TRACED = """
class Answer:
    def __init__(self): self.status = 200
class Client:
    def wait(self): return [Answer()]
class Line:
    def __init__(self): self.kept = None
    def keep(self, answer): self.kept = answer
    def resume(self, answer): self.keep(answer)
    def status(self, answer): return "DELIVERED"
    def step(self): return {"step": self.kept}
    def look_after_others(self): self.status(None)
def answered(line, answers):
    for answer in answers: line.resume(answer)
    line.look_after_others()
    return [line.status(answer) for answer in answers]
"""


def test_trace_counts_what_hands_on_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "WAIT", ("delivery/traced.py", "Client.wait"))
    traced: dict[str, Any] = {"__name__": "delivery.traced"}
    exec(compile(TRACED, ROOT / "delivery/traced.py", "exec"), traced)  # noqa: S102
    client, line, profiler = traced["Client"](), traced["Line"](), trace.Profiler()
    sys.setprofile(profiler)
    try:
        traced["answered"](line, client.wait())
        line.step()
    finally:
        sys.setprofile(None)
    handing_on = [call.function for call in profiler.calls if call.hands_on]
    assert handing_on == ["Client.wait", "answered", "Line.resume", "Line.step"]


def test_model_names_existing_files_and_each_of_its_mistakes_is_checked() -> None:
    text = MODEL.read_text()
    files = re.findall(r"\S+/\S+\.(?:py|md)", text)
    assert len(files) == 14
    assert [file for file in files if not (ROOT / file).is_file()] == []
    mistakes = {check.name for check in CHECKS if check.finds}
    assert len(mistakes) >= 5
    assert set(re.findall(r"#ifn?def (\w+)", text)) - {"SWEEP", "KEYED"} == mistakes


WHOLE = "State-vector 72 byte, depth reached 202, errors: 0\n 2.87e+07 states, stored\npan: elapsed time 99 seconds\n"
ENDED = "Warning: Search not completed\nState-vector 72 byte, depth reached 174, errors: 1\n    57588 states, stored\n"
OUT_OF_MEMORY = f"pan: reached -DMEMLIM bound\n{ENDED}".replace("errors: 1", "errors: 0")


@pytest.mark.parametrize(
    ("finds", "output", "expected"),
    [
        ("", WHOLE, (True, 28_700_000, "nothing wrong in any order")),
        ("", f"pan:1: invalid end state (at depth 9)\n{ENDED}", (False, 57_588, "invalid end state (at depth 9)")),
        (
            "",
            f"pan:1: depth limit reached (at depth 10)\n{ENDED}",
            (False, 57_588, "depth limit reached (at depth 10)"),
        ),
        ("", OUT_OF_MEMORY, (False, 57_588, "it needs more than 8,000 MB of memory")),
        ("", "", (False, 0, "the search is not complete")),
        ("violated", f"pan:1: assertion violated flagged\n{ENDED}", (True, 57_588, "assertion violated flagged")),
        ("violated", f"pan:1: depth limit reached\n{ENDED}", (False, 57_588, "depth limit reached")),
        ("violated", WHOLE, (False, 28_700_000, "nothing wrong in any order")),
        ("violated", OUT_OF_MEMORY, (False, 57_588, "it needs more than 8,000 MB of memory")),
    ],
)
def test_only_whole_searches_show_that_all_is_right(finds: str, output: str, expected: tuple[bool, int, str]) -> None:
    assert judge(ModelCheck("some", HINTS_ONLY, finds), output) == expected


def test_model_without_spin_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StackError, match="apt-get install spin gcc libc6-dev"):
        check_model()


def test_a_second_model_is_refused_and_leaves_the_files_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "FOLDER", tmp_path)
    monkeypatch.setattr("shutil.which", lambda _: "found")
    folder = StackFolder(tmp_path)
    trail = folder.made(CHECKS[0].name) / "trail"
    trail.touch()
    with locked(folder.lock), pytest.raises(AlreadyRunning):
        check_model()
    assert trail.exists()


@pytest.mark.lengthy
def test_model_is_right_and_each_of_its_mistakes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model, "FOLDER", tmp_path)
    status = check_model()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * len(CHECKS), lines
    assert status == 0
