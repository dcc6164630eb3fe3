"""`./broker faults`: the cases of this folder one after the other, with a verdict on each."""

import argparse
import contextlib
import fnmatch
import io
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker_project.stack.test_command import prepared
from broker_project.stack.up import run_command
from tests.support.faults.verdicts import AUDITS, RANDOM, VERDICT, Random, Verdict, markdown, summary

FOLDER = Path(__file__).parent
CONFIGURATION = FOLDER.parents[1] / "pyproject.toml"
NOT_RUN = "it was not run to its end"


@dataclass(slots=True, eq=False)
class Cases:
    """A plugin for pytest: chooses the cases, and keeps a file with what became of them up to date."""

    wanted: Sequence[str] = ()
    """Empty: all."""
    file: Path | None = None
    table: Path | None = None
    """As `file`, for people."""
    random: Random = field(default_factory=Random)
    known: list[str] = field(default_factory=list)
    """Every case there is."""
    unknown: list[str] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    _chosen: dict[str, Verdict] = field(default_factory=dict)
    """By what pytest calls their cases."""
    _begun: float = field(default_factory=time.monotonic)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave those wanted, in that order."""
        cases = {item.stash[VERDICT].case: item for item in items}
        self.known = [*cases]
        self.unknown = [name for name in self.wanted if not fnmatch.filter(cases, name)]
        usual = [name for name, item in cases.items() if not item.get_closest_marker("on_request")]
        chosen = [name for wanted in self.wanted for name in fnmatch.filter(cases, wanted)] or usual
        items[:] = [] if self.unknown else [cases[name] for name in dict.fromkeys(chosen)]
        self._chosen = {item.nodeid: item.stash[VERDICT] for item in items}
        self.verdicts = {one.case: Verdict(one.case, reason=NOT_RUN) for one in self._chosen.values()}
        self.write()

    def pytest_configure(self, config: pytest.Config) -> None:
        """Have every case audited, and say how `random` is to go."""
        config.stash[AUDITS] = True
        config.stash[RANDOM] = self.random

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Print the name of the case."""
        print(f"\n{self._chosen[nodeid].case} ...", end="", flush=True)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        """Print no dots between the verdicts."""
        return report.outcome if report.when == "call" or not report.passed else "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what became of a case."""
        if report.when == "teardown":
            verdict = self._chosen[report.nodeid]
            self.verdicts[verdict.case] = verdict
            self.write()

    def pytest_sessionfinish(self) -> None:
        """Print the failed cases and the totals."""
        self.write()
        print(f"\n\n{summary([*self.verdicts.values()], time.monotonic() - self._begun)}")

    def write(self) -> None:
        """Write down all verdicts so far; what has not been run has not passed."""
        if self.file:
            self.file.write_text(json.dumps([verdict.as_object() for verdict in self.verdicts.values()], indent=1))
        if self.table:
            self.table.write_text(markdown([*self.verdicts.values()]))

    @property
    def all_passed(self) -> bool:
        """Return whether there were any, and each passed."""
        return bool(self.verdicts) and not any(verdict.reason for verdict in self.verdicts.values())


def faults(*arguments: str) -> int:
    """Run the cases that are named, or all; return 0 if all passed."""
    options = parser().parse_args(arguments)
    cases = Cases(options.case, options.json, options.markdown, Random(options.seconds, options.seed))
    try:
        cases.write()
    except OSError as problem:
        return _mistaken(str(problem))
    with prepared() as (_, variables):
        os.environ.update(variables)
        if options.list:
            print(*list_of_cases(), sep="\n")
            return 0
        status = pytest.main([str(FOLDER), "-c", str(CONFIGURATION), "--tb=short"], plugins=[cases])
    if cases.unknown:
        return _mistaken(f"there is no case {', '.join(cases.unknown)}; ./broker faults --list names them")
    return 0 if status == 0 and cases.all_passed else 1


def _mistaken(problem: str) -> int:
    """Print what is wrong with the command line; return the exit status."""
    print(f"broker: {problem}", file=sys.stderr)
    return 2


def list_of_cases() -> list[str]:
    """Return every name."""
    cases = Cases()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([str(FOLDER), "-c", str(CONFIGURATION), "--collect-only"], plugins=[cases])
    return cases.known


def parser() -> argparse.ArgumentParser:
    """Return what the command understands."""
    made = argparse.ArgumentParser("./broker faults", description="Break a running broker, and judge by logs alone.")
    made.add_argument("case", nargs="*", help="only these, in this order; 'queue/*': all that begin so")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every case there")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write them there as tables")
    made.add_argument("--seconds", type=float, default=Random.seconds, metavar="N", help="how long `random` lasts")
    made.add_argument("--seed", type=int, default=Random.seed, metavar="N", help="what `random` breaks follows from it")
    made.add_argument("--list", action="store_true", help="print the names of the cases")
    return made


if __name__ == "__main__":
    sys.exit(run_command(faults, *sys.argv[1:]))
