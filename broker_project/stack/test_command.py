"""`./broker test` and `./broker audit`: every check of the project on throw-away servers."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final
from xml.etree import ElementTree  # nosec B405

from broker_project.core.subprocesses import die_with, lower_priority
from broker_project.stack.folders import ROOT, STATE, StackFolder, is_alive, is_locked
from broker_project.stack.ports import LOOPBACK_NETWORKS
from broker_project.stack.servers import running

NO_TESTS_COLLECTED = 5
Process = subprocess.Popen[bytes]

RUNS = STATE / "test"
"""One folder a run under way, named after its process."""


MANAGE = ("manage.py",)
PYTEST = ("-m", "pytest", "--color=auto")
FRESH_SEEDS = "--fresh-seeds"
"""Random inputs of Hypothesis are new in each run; without it they are the same in every run."""
GENERATED = ("--hypothesis-profile", "fresh")
SPARK_TESTS = "tests/spark"
"""They share a session: one process."""
SPARK_BY_THE_BROKER = f"{SPARK_TESTS}/test_run_by_broker.py"
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

BESIDE_EVENTS = ("analytics", "broker_project", "delivery", "subscriptions")
"""Packages that run beside people's events; the others are programs of their own."""
SHIPPED = (*BESIDE_EVENTS, "benchmarks", "broker_client")

SEMGREP = STATE / "semgrep"
TRAPS = "semgrep"
"""The folder of the rules, each with lines that it finds and lines that it leaves alone."""


EVERY_FILE = ("--error", "--disable-nosem", "--no-git-ignore", "--project-root", ".", "--timeout", "60")
"""Exceptions stand with their rules, and nowhere else."""
IN_ITS_ENVIRONMENT = {
    "SEMGREP_SETTINGS_FILE": str(SEMGREP / "settings.yml"),
    "SEMGREP_LOG_FILE": str(SEMGREP / "semgrep.log"),
}

TOGETHER: Final = (("runtime.txt", "development.txt", "uv.txt"), ("semgrep.txt",))
"""The locks, by what is asked about at once: there no package may have two versions."""
PIP_AUDIT: Final = (sys.executable, "-m", "pip_audit", "--strict", "--require-hashes", "--disable-pip")
QUIETLY: Final = ("--format", "json", "--desc", "off", "--progress-spinner", "off")

CLEAN, VULNERABLE, SKIPPED = 0, 1, 3
"""Exit statuses; 2 is a mistake in the command line."""
MISUSED: Final = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One part: arguments for Python, of the environment whose tests these are or of another."""

    name: str
    arguments: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    report: str = ""
    """Name of the JUnit report it writes, if it runs tests."""
    niceness: int = 0
    python: str = sys.executable


@dataclass(frozen=True, slots=True)
class Result:
    """How a step ended."""

    name: str
    seconds: float
    ok: bool
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        """Give a line of the summary."""
        skipped = f"   {self.skipped} skipped" if self.skipped else ""
        return f"{'ok    ' if self.ok else 'FAILED'} {self.seconds:6.1f} s  {self.name}{skipped}"


def side_by_side(steps: Sequence[Step], variables: Mapping[str, str], folder: Path) -> list[Result]:
    """Run steps at the same time, with these variables and their own; reports and what is printed go into `folder`."""
    first, *others = steps
    files = {step.name: folder / f"{step.name}.log" for step in others}
    beside = f" (beside it: {', '.join(files)})" if files else ""
    print(f"\n── {first.name}{beside} ──", flush=True)
    with ThreadPoolExecutor(len(steps)) as threads, ExitStack() as stack:
        running = [stack.enter_context(_running(step, variables, folder, files.get(step.name))) for step in steps]
        results = list(threads.map(partial(_ended, folder, time.monotonic()), steps, running))
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
    """Run Python at the top of the repository; it ends with this, or with who called it."""
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
            process.kill()  # nothing is done to one that has ended


def _begin(parent: int, niceness: int) -> None:
    """End with `parent`; one that is to be nice is so to everybody, not to its own session alone."""
    die_with(parent)
    if niceness:
        os.setsid()
        lower_priority(niceness)


@contextmanager
def _running(step: Step, variables: Mapping[str, str], folder: Path, file: Path | None) -> Iterator[Process]:
    """Run a step; what it prints goes to the file, if there is one."""
    arguments = (*step.arguments, f"--junitxml={folder / step.report}") if step.report else step.arguments
    with (
        file.open("wb") if file else nullcontext() as output,
        started(
            arguments, {**variables, **step.settings}, output, python=step.python, niceness=step.niceness
        ) as process,
    ):
        yield process


def _ended(folder: Path, begun: float, step: Step, process: Process) -> Result:
    """Wait for the end of a step, and return what became of it."""
    status = process.wait()
    seconds = time.monotonic() - begun
    if not step.report:
        return Result(step.name, seconds, status == 0)
    return _with_counts(step.name, seconds, folder / step.report, ok=status in {0, NO_TESTS_COLLECTED})


def _with_counts(name: str, seconds: float, report: Path, *, ok: bool) -> Result:
    """Read pytest's report; a run that did not even write one counts as one failure."""
    if not report.exists():
        return Result(name, seconds, ok=False, failed=1)
    suite = next(ElementTree.parse(report).iter("testsuite")).attrib  # noqa: S314 - pytest has just written it # nosec B314
    total, skipped = int(suite["tests"]), int(suite["skipped"])
    failed = int(suite["failures"]) + int(suite["errors"])
    return Result(name, seconds, ok, total - failed - skipped, failed, skipped)


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
    "-I",
    str(SEMGREP / "bin" / "semgrep"),
    "scan",
    "--metrics=off",
    "--disable-version-check",
    "--quiet",
    "--strict",
    "--jobs=1",
)


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
            with started((*PYTEST, *pytest_arguments(arguments)), variables) as process:
                return process.wait()
        rounds = (QUICK_CHECKS, TESTS_AND_CHECKS, FAULTS_AND_SPARK)
        return _summarize([result for steps in rounds for result in side_by_side(steps, variables, folder)])


def pytest_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments for pytest; `--fresh-seeds` alone runs every test whose inputs are generated."""
    if list(arguments) == [FRESH_SEEDS]:
        return [*GENERATED, "tests/unit", "tests/integration", "-n", SIDE_BY_SIDE, "-m", "not faults and not lengthy"]
    return [word for argument in arguments for word in (GENERATED if argument == FRESH_SEEDS else [argument])]


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


def audit(*arguments: str) -> int:
    """Ask about every locked package, with further arguments for pip-audit; return the exit status."""
    packages: list[Any] = []
    for locks in TOGETHER:
        asked = _ask_about(locks, arguments)
        if asked.returncode == MISUSED:
            print(asked.stderr, end="", file=sys.stderr)
            return MISUSED
        known = told(asked.stdout)
        if not known:
            print(f"skipped: no vulnerability data reachable\n{asked.stderr.strip()}")
            return SKIPPED
        packages += known
    found = sorted({*vulnerabilities(packages)})
    names = {package["name"] for package in packages}
    print(*found, f"{len(names)} packages asked about, {len(found)} vulnerabilities known", sep="\n")
    return VULNERABLE if found else CLEAN


def _ask_about(locks: Sequence[str], arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    files = [word for lock in locks for word in ("-r", str(ROOT / "requirements" / lock))]
    return subprocess.run(  # noqa: S603 - our own command
        (*PIP_AUDIT, *QUIETLY, *arguments, *files), capture_output=True, text=True, check=False
    )


def told(output: str) -> Sequence[Any]:
    """Return what is known of each package; nothing, unless something is known of all."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError):
        return []
    return packages if all("vulns" in package for package in packages) else []


def vulnerabilities(packages: Sequence[Any]) -> Iterator[str]:
    """Yield a line for each known vulnerability."""
    for package in packages:
        for vulnerability in package["vulns"]:
            fixed = ", ".join(vulnerability["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {vulnerability['id']}, mended in {fixed}"
