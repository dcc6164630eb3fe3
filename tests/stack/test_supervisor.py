"""Processes are started in order, restarted, and never left behind."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from broker_project.stack.folders import ROOT, StackFolder, is_alive
from broker_project.stack.load.wait import wait_until
from broker_project.stack.stores import supervised
from broker_project.stack.supervisor import Child, DidNotStart, Service, Supervisor

PARENT_AND_CHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "open(sys.argv[1], 'w').write(f'{child.pid}\\n')\n"
    "time.sleep(600)\n"
)
OWN_PROCESS = """
import sys
from pathlib import Path
from broker_project.stack.folders import StackFolder
from broker_project.stack.stores import supervised
from broker_project.stack.supervisor import Service
folder = Path(sys.argv[1])
with supervised(StackFolder(folder)) as supervisor:
    note = folder / "pid"
    supervisor.start(Service("parent", [sys.executable, "-c", sys.argv[2], note], is_ready=note.exists))
    print(supervisor["parent"].pid, flush=True)
    sys.stdin.read()
"""

SLEEP = "import time; time.sleep(600)"


def has_a_line(path: Path) -> bool:
    return path.exists() and path.read_text().endswith("\n")


def python(code: str, *arguments: Path) -> list[str | Path]:
    return [sys.executable, "-c", code, *arguments]


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with supervised(StackFolder(tmp_path)) as supervisor:
        yield supervisor


def test_a_start_that_takes_long_says_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_project.stack.supervisor.START_HEARTBEAT_SECONDS", 0.01)
    said: list[str] = []
    command = [sys.executable, "-c", SLEEP]
    with supervised(StackFolder(tmp_path), said.append) as supervisor:
        slow = Service("slow", command, is_ready=lambda: len(said) > 1)
        supervisor.start(Service("quick", command), slow)
    assert said[0].startswith("... still waiting for slow after ")


def test_killed_process_restarts_with_the_same_environment(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "import os, sys, time; open(sys.argv[1], 'a').write(os.environ['NAME'] + '\\n'); time.sleep(600)"
    starts = tmp_path / "starts"
    is_written = partial(has_a_line, starts)
    supervisor.start(Service("named", python(code, starts), {"NAME": "the same"}, is_ready=is_written))
    first = supervisor["named"].pid
    supervisor["named"].kill()
    wait_until(lambda: starts.read_text() == "the same\nthe same\n")
    wait_until(lambda: supervisor["named"].pid not in {None, first})  # it may write before its number is known


def kill_and_wait_for_the_next(child: Child) -> None:
    killed = child.pid
    child.kill()
    wait_until(lambda: child.pid not in {None, killed})


@pytest.mark.behaviour("11.5")
@pytest.mark.parametrize(
    "problem",
    [OSError(errno.ENOSPC, "no space left"), subprocess.SubprocessError("in a child"), ValueError("not a pid")],
)
def test_a_service_that_cannot_start_starts_once_it_can(problem: Exception, tmp_path: Path) -> None:
    problems: list[Exception] = []
    said: list[str] = []

    def prepare() -> None:
        if problems:
            raise problems.pop()

    with supervised(StackFolder(tmp_path), said.append) as supervisor:
        supervisor.start(Service("sleeper", python(SLEEP), prepare=prepare))
        sleeper = supervisor["sleeper"]
        problems.append(problem)
        kill_and_wait_for_the_next(sleeper)
        wait_until(lambda: len(said) == 2)
    assert said == [
        f"sleeper had ended and cannot start: {problem}",
        f"sleeper had ended: started again (log: {sleeper.log})",
    ]


@pytest.mark.behaviour("11.5")
def test_services_restart_although_standard_error_is_full(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as full:

        def say(text: str) -> None:
            full.write(text.encode())

        with supervised(StackFolder(tmp_path), say) as supervisor:
            supervisor.start(Service("sleeper", python(SLEEP)))
            sleeper = supervisor["sleeper"]
            for _ in range(2):
                kill_and_wait_for_the_next(sleeper)
            wait_until(lambda: sleeper.log.read_text().count("sleeper had ended: started again") == 2)


@pytest.mark.behaviour("11.5")
def test_services_restart_although_their_logs_cannot_be_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker_project.stack.supervisor.MAX_LOG_BYTES", 0)
    monkeypatch.setattr("broker_project.stack.supervisor.CHECKS_PER_LOG_ROTATION", 1)
    folder, said = StackFolder(tmp_path), list[str]()
    older = folder.logs / "talker.log.1"
    older.symlink_to("/dev/full")
    with supervised(folder, said.append) as supervisor:
        supervisor.start(Service("talker", python(f"print('started', flush=True); {SLEEP}")))
        talker = supervisor["talker"]
        wait_until(lambda: older.is_file() and older.read_text() == "started\n")
        kill_and_wait_for_the_next(talker)
    assert said[0] == f"{talker.log} cannot be rotated: [Errno 28] No space left on device"


@pytest.mark.behaviour("11.5")
def test_services_restart_although_the_guard_was_killed(supervisor: Supervisor) -> None:
    supervisor.start(Service("sleeper", python(SLEEP)))
    supervisor._guard._process.kill()
    supervisor._guard._process.wait()
    kill_and_wait_for_the_next(supervisor["sleeper"])


@pytest.mark.parametrize("by", [None, signal.SIGKILL])
def test_stopped_process_is_not_restarted(supervisor: Supervisor, by: signal.Signals | None) -> None:
    supervisor.start(Service("sleeper", python(SLEEP)))
    sleeper = supervisor["sleeper"]
    first = sleeper.pid
    sleeper.stop(by)
    assert (sleeper.pid, sleeper.restart_if_ended()) == (None, False)
    sleeper.start()
    assert sleeper.pid not in {None, first}


def test_temporary_services_stop_with_their_context(supervisor: Supervisor) -> None:
    with supervisor.meanwhile(Service("guest", python(SLEEP))):
        pid = supervisor["guest"].pid
        assert pid
        assert [child.service.name for child in supervisor] == ["guest"]
    assert [*supervisor] == []
    assert not is_alive(pid)


def test_children_of_a_killed_process_end_with_it(supervisor: Supervisor, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    supervisor.start(Service("parent", python(PARENT_AND_CHILD, note), is_ready=note.exists))
    wait_until(lambda: note.read_text().endswith("\n"))
    grandchild = int(note.read_text())
    parent = supervisor["parent"].pid
    assert parent
    os.kill(parent, signal.SIGKILL)
    wait_until(lambda: not is_alive(grandchild))


def test_process_that_ignores_the_stop_signal_is_killed(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w'); time.sleep(600)"
    ready = tmp_path / "ready"
    supervisor.start(Service("stubborn", python(code, ready), is_ready=ready.exists, stop_seconds=0.2))
    pid = supervisor["stubborn"].pid
    assert pid
    supervisor["stubborn"].stop()
    assert not is_alive(pid)


def test_service_that_ends_at_once_is_reported_with_its_log(supervisor: Supervisor) -> None:
    with pytest.raises(DidNotStart, match="no such luck"):
        supervisor.start(Service("failing", python("raise SystemExit('no such luck')"), is_ready=lambda: False))


def test_application_stops_before_the_stores(tmp_path: Path) -> None:
    code = "import signal, sys, time\ndef end(*_): open(sys.argv[1], 'a').write(sys.argv[2]); sys.exit()\n"
    code += "signal.signal(15, end); open(sys.argv[3], 'w'); time.sleep(600)"
    ends = tmp_path / "ends"
    with supervised(StackFolder(tmp_path)) as supervisor:
        for name, is_store in (("store", True), ("application", False)):
            ready = tmp_path / f"{name} is ready"
            command = python(code, ends, Path(name), ready)
            supervisor.start(Service(name, command, is_ready=ready.exists, is_store=is_store))
    assert ends.read_text() == "applicationstore"


def test_services_end_with_a_killed_supervisor(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWN_PROCESS, str(tmp_path), PARENT_AND_CHILD]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        parent = int(process.stdout.readline())
        wait_until(lambda: (tmp_path / "pid").read_text().endswith("\n"))
        grandchild = int((tmp_path / "pid").read_text())
        assert is_alive(parent)
        assert is_alive(grandchild)
        process.kill()
        wait_until(lambda: not is_alive(parent) and not is_alive(grandchild))
    with supervised(StackFolder(tmp_path)):
        pass
