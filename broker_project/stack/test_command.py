"""`./broker test` and `./broker audit`: all checks of the project, on temporary servers."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Final
from xml.etree import ElementTree  # nosec B405

from broker_project.core.subprocesses import die_with, lower_priority
from broker_project.stack.folders import ROOT, STATE, StackFolder, is_alive, is_locked
from broker_project.stack.ports import LOOPBACK_NETWORKS
from broker_project.stack.stores import running_stores
from broker_project.stack.variables import forget_variables

NO_TESTS_COLLECTED = 5
Process = subprocess.Popen[bytes]

PYTEST = ("-m", "pytest", "--color=auto")
FRESH_SEEDS = "--fresh-seeds"
"""Lets tests that generate their inputs use new random ones, instead of the same in every run."""
SPARK_TESTS = "tests/spark"
"""They share a Spark session, so they run in one process."""
SPARK_BY_THE_BROKER = f"{SPARK_TESTS}/test_run_by_broker.py"
"""It starts a broker, which starts Spark."""
WITH_BROKERS = ("tests/acceptance", "tests/benchmarks", "tests/faults", "tests/stack")
"""The only folders with tests that start their own stack."""
RUN_APART = (SPARK_TESTS, "tests/acceptance", "tests/faults")
"""Folders that have none of the tests that run side by side: each process would import them for nothing."""
SIDE_BY_SIDE = ("-n", "3", "--dist", "worksteal")
"""On two cores: each process waits for a third of its time."""
BELOW_WORKERS = 15
"""The niceness of steps that run beside a broker, whose workers have 8 and whose Spark has 10."""
LOWEST_PRIORITY = 19
"""The niceness of steps that use only idle CPU."""

QUICK_JAVA = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"}
"""Only the first compiler tier: tests with few rows end before optimized code would pay off."""

SERVER_PACKAGES = ("analytics", "broker_project", "delivery", "subscriptions")
"""Packages that run in the processes of the broker."""
SHIPPED = (*SERVER_PACKAGES, "benchmarks", "broker_client")

SEMGREP = STATE / "semgrep"
RULES_FOLDER = "semgrep"
"""The folder of the semgrep rules, each with lines that it finds and lines that it does not."""

ALL_FILES = ("--error", "--disable-nosem", "--no-git-ignore", "--project-root", ".", "--timeout", "60")
"""Exceptions are declared with the rules and nowhere else."""

AUDITED_LOCKS: Final = (("runtime.txt", "development.txt", "uv.txt"), ("semgrep.txt",))
"""Locks that are checked in one call. No package may have two versions in a call."""


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the test command: arguments for a Python."""

    name: str
    arguments: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    report: str = ""
    """Name of its JUnit report, if it runs tests."""
    niceness: int = 0
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a step."""

    name: str
    seconds: float
    ok: bool
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        """Return a line of the summary."""
        skipped = f"   {self.skipped} skipped" if self.skipped else ""
        return f"{'ok    ' if self.ok else 'FAILED'} {self.seconds:6.1f} s  {self.name}{skipped}"


def run_in_parallel(steps: Sequence[Step], variables: Mapping[str, str], folder: Path) -> list[Result]:
    """Run steps in parallel. Reports and the output of all but the first go to files in `folder`, then to stdout."""
    first, *others = steps
    files = {step.name: folder / f"{step.name}.log" for step in others}
    parallel = f" (in parallel: {', '.join(files)})" if files else ""
    print(f"\n── {first.name}{parallel} ──", flush=True)
    with ThreadPoolExecutor(len(steps)) as threads, ExitStack() as stack:
        running = []
        for step in steps:
            output = stack.enter_context(files[step.name].open("wb")) if step.name in files else None
            report = (f"--junitxml={folder / step.report}",) if step.report else ()
            settings = {**variables, **step.settings}
            process = started((*step.arguments, *report), settings, output, python=step.python, niceness=step.niceness)
            running.append(stack.enter_context(process))
        results = list(threads.map(partial(_result, folder, time.monotonic()), steps, running))
    for name, file in files.items():
        print(f"\n── {name} ──\n{file.read_text(errors='replace')}", end="", flush=True)
    return results


@contextmanager
def started(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    output: IO[bytes] | None = None,
    *,
    python: str = sys.executable,
    niceness: int = 0,
) -> Iterator[Process]:
    """Run Python in the repository. The process ends with the context, or with this process."""
    with subprocess.Popen(  # noqa: S603 - our own command
        (python, *arguments),
        cwd=ROOT,
        env=os.environ | variables,
        stdout=output,
        stderr=output,
        preexec_fn=partial(_begin, os.getpid(), niceness),  # noqa: PLW1509 - a few system calls
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # does nothing if it has ended


def _begin(parent: int, niceness: int) -> None:
    """Die with `parent`, and lower the priority of the whole session."""
    die_with(parent)
    if niceness:
        os.setsid()
        lower_priority(niceness)


def _result(folder: Path, begun: float, step: Step, process: Process) -> Result:
    """Wait for a step and return its result."""
    status = process.wait()
    seconds = time.monotonic() - begun
    if not step.report:
        return Result(step.name, seconds, status == 0)
    report = folder / step.report
    if not report.exists():
        return Result(step.name, seconds, ok=False, failed=1)
    suite = next(ElementTree.parse(report).iter("testsuite")).attrib  # noqa: S314 - pytest has just written it # nosec B314
    total, skipped = int(suite["tests"]), int(suite["skipped"])
    failed = int(suite["failures"]) + int(suite["errors"])
    is_ok = status in {0, NO_TESTS_COLLECTED}
    return Result(step.name, seconds, is_ok, total - failed - skipped, failed, skipped)


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


SCAN = (
    *("-I", str(SEMGREP / "bin" / "semgrep"), "scan", "--quiet", "--strict", "--jobs=1"),
    *("--metrics=off", "--disable-version-check"),
)


semgrep_step = partial(
    Step,
    settings={"SEMGREP_SETTINGS_FILE": f"{SEMGREP}/settings.yml", "SEMGREP_LOG_FILE": f"{SEMGREP}/semgrep.log"},
    python=str(SEMGREP / "bin" / "python"),
    niceness=LOWEST_PRIORITY,
)
QUICK_CHECKS = (
    Step("format", ("-m", "ruff", "format", "--check", ".")),
    Step("lint", ("-m", "ruff", "check", ".")),
    Step("imports", (str(Path(sys.executable).with_name("lint-imports")), "--no-cache")),
    Step("migrations", ("manage.py", "makemigrations", "--check", "--dry-run")),
    Step("deployment", ("manage.py", "check", "--deploy", "--fail-level", "WARNING"), PRODUCTION_SETTINGS),
)
TESTS_AND_CHECKS = (
    Step(
        "tests",
        (*PYTEST, *SIDE_BY_SIDE, "-m", "not faults and not lengthy", *(f"--ignore={folder}" for folder in RUN_APART)),
        report="tests.xml",
    ),
    Step("types", ("-m", "mypy"), niceness=LOWEST_PRIORITY),
    Step(
        "security",
        ("-m", "bandit", "--quiet", "--configfile", "pyproject.toml", "--recursive", *SHIPPED),
        niceness=LOWEST_PRIORITY,
    ),
    semgrep_step("semgrep rules", (*SCAN, *ALL_FILES, "--config", RULES_FOLDER, *SERVER_PACKAGES)),
    semgrep_step("tests of semgrep rules", (*SCAN, "--test", RULES_FOLDER)),
)
"""The checks use the CPU that the tests leave idle."""
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
        niceness=BELOW_WORKERS,
    ),
    Step("a run of Spark", (*PYTEST, SPARK_BY_THE_BROKER), QUICK_JAVA, report="run.xml", niceness=BELOW_WORKERS),
)
"""Fault tests wait most of the time. The others use the CPU that they leave idle."""


def test(*arguments: str) -> int:
    """Run all steps, or pytest with the arguments other than `--fresh-seeds`; return the exit status."""
    others = [argument for argument in arguments if argument != FRESH_SEEDS]
    with prepared() as (folder, prepared_variables):
        variables = prepared_variables | ({"FRESH_SEEDS": "1"} if FRESH_SEEDS in arguments else {})
        if others:
            with started((*PYTEST, *others), variables) as process:
                return process.wait()
        rounds = (QUICK_CHECKS, TESTS_AND_CHECKS, FAULTS_AND_SPARK)
        results = [result for steps in rounds for result in run_in_parallel(steps, variables, folder)]
    print("\n── summary ──", *results, sep="\n")
    print(f"{sum(result.passed for result in results)} passed, {sum(result.failed for result in results)} failed")
    return 0 if all(result.ok for result in results) else 1


@contextmanager
def prepared() -> Iterator[tuple[Path, dict[str, str]]]:
    """Run temporary servers; give their folder and the variables of tests. The user's variables are ignored."""
    runs = STATE / "test"
    folder = runs / str(os.getpid())
    forget_variables()
    for stale in runs.glob("*"):
        if not is_alive(int(stale.name)) and not is_locked(StackFolder(stale).lock):
            shutil.rmtree(stale, ignore_errors=True)
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder, TEST_SETTINGS | stack.enter_context(running_stores(folder, durable=False)).environment


def audit(*arguments: str) -> int:
    """Check all locked packages, with more arguments for pip-audit; return 0 if every check has passed, else 1."""
    options = ("--strict", "--require-hashes", "--disable-pip", "--progress-spinner=off", *arguments)
    statuses = []
    for locks in AUDITED_LOCKS:
        files = [word for lock in locks for word in ("-r", str(ROOT / "requirements" / lock))]
        statuses.append(subprocess.run((sys.executable, "-m", "pip_audit", *options, *files), check=False).returncode)  # noqa: S603 - ours
    return 1 if any(statuses) else 0
