"""The parts of the test command: programs of the environment's Python, several of them side by side, and how they end.

The first of those side by side prints as it goes; of each other all comes at once in the end, so that nothing is mixed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from broker_project.core.process_priority import stand_back
from broker_project.stack.folders import ROOT
from broker_project.stack.guard import die_with

NO_TESTS_COLLECTED = 5
Process = subprocess.Popen[bytes]


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
        stand_back(niceness)


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
