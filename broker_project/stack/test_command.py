"""`./broker test`: every check of the project on throw-away servers, or pytest alone with arguments."""

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from broker_project.stack.folder_lock import is_alive, is_locked
from broker_project.stack.folders import STATE, StackFolder
from broker_project.stack.ports import LOOPBACK_NETWORKS
from broker_project.stack.servers import running
from broker_project.stack.steps import Result, Step, side_by_side, started

RUNS = STATE / "test"
"""One folder a run under way, named after its process."""

TEST_SETTINGS = {
    "BROKER_SECRET_KEY": "only-for-tests",
    "BROKER_DEVELOPMENT": "1",
    "BROKER_ALLOWED_NETWORKS": LOOPBACK_NETWORKS,
    "DJANGO_SETTINGS_MODULE": "broker_project.settings",
}
PRODUCTION_SETTINGS = {
    "BROKER_SECRET_KEY": "as-long-and-as-random-as-a-key-of-a-real-installation-0123456789",
    "BROKER_DEVELOPMENT": "0",
    "BROKER_ALLOWED_NETWORKS": "",
    "BROKER_ALLOWED_HOSTS": "broker.example.org",
    "BROKER_PUBLIC_URL": "https://broker.example.org",
}

MANAGE = ("manage.py",)
PYTEST = ("-m", "pytest", "--color=auto")
SPARK_TESTS = "tests/spark"
"""They share a session: one process."""
SPARK_BY_THE_BROKER = f"{SPARK_TESTS}/test_a_run.py"
"""It has a broker instead, which starts Spark."""
WITHOUT_SPARK = f"--ignore={SPARK_TESTS}"
WITH_BROKERS = ("tests/acceptance", "tests/benchmarks", "tests/faults", "tests/stack")
"""Where tests with a whole stack of their own may stand: nobody has to read all the others to find them."""
SIDE_BY_SIDE = "3"
"""Processes that run tests, on two cores: each waits for a third of its time."""
BEHIND_WORKERS = 15
"""The niceness of what leaves the cores to a broker beside it: its workers have 8, and its Spark 10."""
LAST = 19
"""The niceness of what takes only what is left of the cores."""

QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"}
"""Compiled once and roughly, with room for all of it: what reads a few rows ends before the best code would be made."""

BESIDE_EVENTS = ("analytics", "broker_project", "delivery", "people", "subscriptions")
"""Packages that run beside people's events; the others are programs of their own."""
SHIPPED = (*BESIDE_EVENTS, "benchmarks", "broker_client")

SEMGREP = STATE / "semgrep"
TRAPS = "semgrep"
"""The folder of the rules, each with lines that it finds and lines that it leaves alone."""
SCAN = (
    "-I",
    str(SEMGREP / "bin" / "semgrep"),
    "scan",
    "--metrics=off",
    "--disable-version-check",
    "--quiet",
    "--strict",
    "--jobs=1",
)
EVERY_FILE = ("--error", "--disable-nosem", "--no-git-ignore", "--project-root", ".", "--timeout", "60")
"""Exceptions stand with their rules, and nowhere else."""
IN_ITS_ENVIRONMENT = {
    "SEMGREP_SETTINGS_FILE": str(SEMGREP / "settings.yml"),
    "SEMGREP_LOG_FILE": str(SEMGREP / "semgrep.log"),
}
find_traps = partial(Step, settings=IN_ITS_ENVIRONMENT, python=str(SEMGREP / "bin" / "python"), niceness=LAST)

QUICK_CHECKS = (
    Step("format", ("-m", "ruff", "format", "--check", ".")),
    Step("lint", ("-m", "ruff", "check", ".")),
    Step("imports", (str(Path(sys.executable).with_name("lint-imports")), "--no-cache")),
    Step("migrations", (*MANAGE, "makemigrations", "--check", "--dry-run")),
    Step("deployment", (*MANAGE, "check", "--deploy", "--fail-level", "WARNING"), PRODUCTION_SETTINGS),
)
TESTS_AND_CHECKS = (
    Step(
        "tests",
        (*PYTEST, "-n", SIDE_BY_SIDE, "--dist", "worksteal", "-m", "not faults and not lengthy", WITHOUT_SPARK),
        report="tests.xml",
    ),
    Step("types", ("-m", "mypy"), niceness=LAST),
    Step(
        "security",
        ("-m", "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *SHIPPED),
        niceness=LAST,
    ),
    find_traps("traps", (*SCAN, *EVERY_FILE, "--config", TRAPS, *BESIDE_EVENTS)),
    find_traps("rules of traps", (*SCAN, "--test", TRAPS)),
)
"""The tests wait for a tenth of the time; the checks need about as much, and nobody waits for them."""
FAULTS_AND_SPARK = (
    Step(
        "fault tests",
        (*PYTEST, "-m", "faults and (selected or not case) and not lengthy", *WITH_BROKERS),
        report="faults.xml",
    ),
    Step(
        "Spark tests",
        (*PYTEST, "-m", "not cluster and not lengthy", SPARK_TESTS, f"--ignore={SPARK_BY_THE_BROKER}"),
        QUICK_JAVA,
        report="spark.xml",
        niceness=BEHIND_WORKERS,
    ),
    Step("a run of Spark", (*PYTEST, SPARK_BY_THE_BROKER), QUICK_JAVA, report="run.xml", niceness=BEHIND_WORKERS),
)
"""The first wait most of the time, for a broker with stores of its own; the others take what is left of the cores."""


def test(*arguments: str) -> int:
    """Run everything, or pytest with the arguments; return the exit status."""
    with prepared() as (folder, variables):
        if arguments:
            with started((*PYTEST, *arguments), variables) as process:
                return process.wait()
        rounds = (QUICK_CHECKS, TESTS_AND_CHECKS, FAULTS_AND_SPARK)
        return _summarize([result for steps in rounds for result in side_by_side(steps, variables, folder)])


@contextlib.contextmanager
def prepared() -> Iterator[tuple[Path, dict[str, str]]]:
    """Give a throw-away folder with servers in it, and the variables that tests need; they alone decide."""
    folder = RUNS / str(os.getpid())
    for name in [name for name in os.environ if name.startswith("BROKER_")]:
        del os.environ[name]
    _remove_stale_runs()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder, TEST_SETTINGS | stack.enter_context(running(folder, durable=False))


def _summarize(results: Sequence[Result]) -> int:
    print("\n── summary ──")
    print(*results, sep="\n")
    print(f"{sum(result.passed for result in results)} passed, {sum(result.failed for result in results)} failed")
    return 0 if all(result.ok for result in results) else 1


def _stale_runs() -> Iterator[Path]:
    for folder in RUNS.glob("*"):
        if not is_alive(int(folder.name)) and not is_locked(StackFolder(folder).lock):
            yield folder


def _remove_stale_runs() -> None:
    for folder in _stale_runs():
        shutil.rmtree(folder, ignore_errors=True)
