"""`./broker test`: every check of the project on throw-away servers, or pytest alone with arguments."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from broker_project.stack.folder_lock import is_alive, is_locked
from broker_project.stack.folders import ROOT, STATE, StackFolder
from broker_project.stack.guard import die_with
from broker_project.stack.servers import running

RUNS = STATE / "test"
"""One folder a run under way, named after its process."""

TEST_SETTINGS = {
    "BROKER_SECRET_KEY": "only-for-tests",
    "BROKER_DEVELOPMENT": "1",
    "DJANGO_SETTINGS_MODULE": "broker_project.settings",
}
PRODUCTION_SETTINGS = {
    "BROKER_SECRET_KEY": "as-long-and-as-random-as-a-key-of-a-real-installation-0123456789",
    "BROKER_DEVELOPMENT": "0",
    "BROKER_ALLOWED_HOSTS": "broker.example.org",
    "BROKER_PUBLIC_URL": "https://broker.example.org",
}

MANAGE = ("manage.py",)
PYTEST = ("-m", "pytest", "--color=auto")
SPARK_TESTS = "tests/spark"
"""They share a session, which takes both cores: one process, and nothing beside it."""
WITHOUT_SPARK = f"--ignore={SPARK_TESTS}"


@dataclass(frozen=True, slots=True)
class Step:
    """One part of the test command: arguments for the environment's Python."""

    name: str
    arguments: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)
    report: str = ""
    """Name of the JUnit report it writes, if it runs tests."""


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


STEPS = (
    Step("format", ("-m", "ruff", "format", "--check", ".")),
    Step("lint", ("-m", "ruff", "check", ".")),
    Step("types", ("-m", "mypy")),
    Step("imports", (str(Path(sys.executable).with_name("lint-imports")), "--no-cache")),
    Step("migrations", (*MANAGE, "makemigrations", "--check", "--dry-run")),
    Step("deployment", (*MANAGE, "check", "--deploy", "--fail-level", "WARNING"), PRODUCTION_SETTINGS),
    Step("tests", (*PYTEST, "-n", "2", "-m", "not faults", WITHOUT_SPARK), report="tests.xml"),
    Step("Spark tests", (*PYTEST, "-m", "not cluster and not lengthy", SPARK_TESTS), report="spark.xml"),
    Step(
        "fault tests",
        (*PYTEST, "-m", "faults and (selected or not case) and not lengthy", WITHOUT_SPARK),
        report="faults.xml",
    ),
)
NO_TESTS_COLLECTED = 5


def test(*arguments: str) -> int:
    """Run everything, or pytest with the arguments; return the exit status."""
    with prepared() as (folder, variables):
        if arguments:
            return _call((*PYTEST, *arguments), variables)
        return _summarize([_run(step, variables, folder) for step in STEPS])


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


def _run(step: Step, variables: Mapping[str, str], folder: Path) -> Result:
    """Run one step, saying so."""
    print(f"\n── {step.name} ──", flush=True)
    report = folder / step.report
    arguments = (*step.arguments, f"--junitxml={report}") if step.report else step.arguments
    started = time.monotonic()
    status = _call(arguments, {**variables, **step.settings})
    seconds = time.monotonic() - started
    if not step.report:
        return Result(step.name, seconds, status == 0)
    return _with_counts(step.name, seconds, report, ok=status in {0, NO_TESTS_COLLECTED})


def _with_counts(name: str, seconds: float, report: Path, *, ok: bool) -> Result:
    """Read pytest's report; a run that did not even write one counts as one failure."""
    if not report.exists():
        return Result(name, seconds, ok=False, failed=1)
    suite = next(ElementTree.parse(report).iter("testsuite")).attrib  # noqa: S314 - pytest has just written it
    total, skipped = int(suite["tests"]), int(suite["skipped"])
    failed = int(suite["failures"]) + int(suite["errors"])
    return Result(name, seconds, ok, total - failed - skipped, failed, skipped)


def _summarize(results: Sequence[Result]) -> int:
    print("\n── summary ──")
    print(*results, sep="\n")
    print(f"{sum(result.passed for result in results)} passed, {sum(result.failed for result in results)} failed")
    return 0 if all(result.ok for result in results) else 1


def _call(arguments: Sequence[str], variables: Mapping[str, str]) -> int:
    """Run the environment's Python at the top of the repository; it ends when this process does."""
    return subprocess.run(  # noqa: S603 - our own command
        (sys.executable, *arguments),
        cwd=ROOT,
        env=os.environ | variables,
        check=False,
        preexec_fn=partial(die_with, os.getpid()),
    ).returncode


def _stale_runs() -> Iterator[Path]:
    for folder in RUNS.glob("*"):
        if not is_alive(int(folder.name)) and not is_locked(StackFolder(folder).lock):
            yield folder


def _remove_stale_runs() -> None:
    for folder in _stale_runs():
        shutil.rmtree(folder, ignore_errors=True)
