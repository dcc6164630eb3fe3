"""A run of Spark from outside, shown with other programs: what is heard of it, how it ends, that nothing is left."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analytics.guard import NICENESS, members
from analytics.spark_process import End, Ended, GuardedProcess, NotAReport, ended
from analytics.spark_settings import ROOT, spark_environment
from tests.receiver import wait_until

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.setpgid(0, 0)
print("started", flush=True)
time.sleep(600)
"""
"""What Spark's Python workers are like at their worst: out of the process group, deaf to what asks it to end."""
PARENT = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {STUBBORN!r}])
time.sleep(600)
"""
REPORTING = "import os; report = lambda text: os.write(int(os.environ['BROKER_REPORT_FD']), text);"


class Run:
    """A run of a Python program."""

    def __init__(self, folder: Path, program: str, on_report: Callable[[Any], object] | None = None) -> None:
        self.reports: list[Any] = []
        self.log = folder / "log"
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.stopping = threading.Event()
        self.process = GuardedProcess(
            (sys.executable, "-c", program),
            {"PYTHONPATH": str(ROOT), "ONLY": "this"},
            self.scratch,
            log=self.log,
            on_report=on_report or self.reports.append,
        )

    def end(self, seconds: float = 60.0) -> Ended:
        return ended(self.process, seconds=seconds, stopping=self.stopping)

    @property
    def session(self) -> int:
        """The session's number, which is the guard's process id."""
        return self.process._guard.pid

    def has_logged(self) -> bool:
        self.process.listen()
        return b"started" in self.log.read_bytes()


def test_what_it_reports_is_passed_on_and_what_it_prints_is_kept(tmp_path: Path) -> None:
    program = (
        REPORTING
        + """report(b'{"a": 1}\\n{"b"'); print("said"); report(b': [2]}\\n'); os.write(2, b"and complained")"""
    )
    run = Run(tmp_path, program)
    assert run.end() == Ended(End.BY_ITSELF, 0)
    assert run.reports == [{"a": 1}, {"b": [2]}]
    assert run.log.read_text() in {"said\nand complained", "and complainedsaid\n"}
    assert not run.scratch.exists()


@pytest.mark.parametrize(("program", "status"), [("import sys; sys.exit(3)", 3), ("import os; os.abort()", 134)])
def test_a_failure_is_told_by_its_status(tmp_path: Path, program: str, status: int) -> None:
    assert Run(tmp_path, program).end() == Ended(End.BY_ITSELF, status)


def test_one_that_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    run = Run(tmp_path, PARENT)
    wait_until(run.has_logged)
    assert run.end(seconds=0.0) == Ended(End.TOO_LONG, 128 + signal.SIGTERM)
    assert (members(run.session), run.scratch.exists()) == (set(), False)


def test_one_that_is_stopped_may_end_in_order(tmp_path: Path) -> None:
    program = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("tidied up")))
print("started", flush=True)
time.sleep(600)
"""
    run = Run(tmp_path, program)
    wait_until(run.has_logged)
    run.stopping.set()
    assert run.end() == Ended(End.STOPPED, 0)
    assert run.log.read_text() == "started\ntidied up\n"


def test_what_a_report_raises_ends_it(tmp_path: Path) -> None:
    def refuse(report: Any) -> None:
        raise LookupError(report)

    run = Run(tmp_path, REPORTING + "report(b'{}\\n'); import time; time.sleep(600)", on_report=refuse)
    with pytest.raises(LookupError):
        run.end()
    assert members(run.session) == set()


@pytest.mark.parametrize("text", ["b'[1]\\n'", "b'hello\\n'", "b'\\n'", "b'x' * 5_000_000"])
def test_what_is_no_report_ends_it(tmp_path: Path, text: str) -> None:
    run = Run(tmp_path, REPORTING + f"report({text}); import time; time.sleep(600)")
    with pytest.raises(NotAReport):
        run.end()
    assert members(run.session) == set()


WORKER = """
import sys
from pathlib import Path
from tests.unit.test_guarded_processes import PARENT, Run
run = Run(Path(sys.argv[1]), PARENT)
print(run.session, flush=True)
run.end()
"""


def test_nothing_is_left_of_it_when_its_worker_is_killed(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        (sys.executable, "-c", WORKER, str(tmp_path)),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    assert worker.stdout
    session = int(worker.stdout.readline())
    wait_until(lambda: b"started" in (tmp_path / "log").read_bytes())
    assert len(members(session)) == 3
    worker.kill()
    worker.communicate()
    wait_until(lambda: not members(session))
    wait_until(lambda: not (tmp_path / "scratch").exists())


def test_nothing_is_left_of_it_when_its_guard_is_killed(tmp_path: Path) -> None:
    run = Run(tmp_path, PARENT)
    wait_until(run.has_logged)
    os.kill(run.session, signal.SIGKILL)
    assert run.end() == Ended(End.BY_ITSELF, 128 + signal.SIGKILL)
    assert members(run.session) == set()


def test_everybody_else_has_the_cpu_and_the_memory_first(tmp_path: Path) -> None:
    run = Run(tmp_path, "import time; print('started', flush=True); time.sleep(600)")
    wait_until(run.has_logged)
    of_a_process = min(os.nice(0) + NICENESS, 19)
    for pid in members(run.session):
        assert os.getpriority(os.PRIO_PROCESS, pid) == of_a_process
        assert os.getsid(pid) == run.session
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "800\n"
        with contextlib.suppress(FileNotFoundError):
            assert Path(f"/proc/{pid}/autogroup").read_text().endswith(f" nice {NICENESS}\n")
    run.stopping.set()
    run.end()


def test_what_it_writes_is_nobody_elses(tmp_path: Path) -> None:
    file = tmp_path / "lake"
    assert Run(tmp_path, f"open({str(file)!r}, 'w').close()").end() == Ended(End.BY_ITSELF, 0)
    assert file.stat().st_mode & 0o777 == 0o600


def test_it_gets_only_the_variables_that_it_is_given(tmp_path: Path) -> None:
    run = Run(tmp_path, "import os; print(sorted(os.environ.keys() - {'LC_CTYPE'}))")
    run.end()
    assert run.log.read_text() == "['BROKER_REPORT_FD', 'ONLY', 'PYTHONPATH']\n"


SECRETS = {"BROKER_SECRET_KEY": "k", "REDIS_URL": "r", "FLOWER_BASIC_AUTH": "f", "DJANGO_SETTINGS_MODULE": "s"}
OTHERS = {
    "SPARK_HOME": "/other",
    "PYSPARK_PYTHON": "/other/python",
    "HADOOP_CONF_DIR": "/h",
    "AWS_REGION": "a",
    "JDK_JAVA_OPTIONS": "-Xss2m",
    "X": "",
}


def given(master: str, folder: Path) -> dict[str, str]:
    environment = {**SECRETS, **OTHERS, "PATH": os.environ["PATH"], "HOME": "/home"}
    return spark_environment(folder, master=master, database_url="postgres://them", environment=environment)


def test_spark_gets_what_it_needs_and_no_secret_but_the_databases_address(tmp_path: Path) -> None:
    here = given("local[1]", tmp_path)
    assert not (SECRETS.keys() | {"SPARK_HOME", "X"}) & here.keys()
    assert here["DATABASE_URL"] == "postgres://them"
    assert here["PYSPARK_PYTHON"] == here["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert (here["SPARK_LOCAL_IP"], here["TZ"], here["AWS_REGION"], here["HOME"]) == ("127.0.0.1", "UTC", "a", "/home")
    assert here["JDK_JAVA_OPTIONS"] == "-Xss2m"
    assert (Path(here["JAVA_HOME"]) / "bin" / "java").exists()


def test_on_a_cluster_spark_is_as_the_operator_has_set_it_up(tmp_path: Path) -> None:
    there = given("spark://host:7077", tmp_path)
    assert not SECRETS.keys() & there.keys()
    assert (there["SPARK_HOME"], there["PYSPARK_PYTHON"], "SPARK_LOCAL_IP" in there) == (
        "/other",
        "/other/python",
        False,
    )
