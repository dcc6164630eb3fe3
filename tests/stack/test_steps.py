"""Steps that run side by side, each a program of its own, and what becomes of them."""

import os
from pathlib import Path

import pytest

from broker_project.stack.folders import ROOT
from broker_project.stack.test_command import WITH_BROKERS, Step, side_by_side

MEETS = """
import sys, time
from pathlib import Path
mine, theirs = map(Path, sys.argv[1:])
mine.touch()
while not theirs.exists():
    time.sleep(0.01)
print(mine.name, "has met", theirs.name)
"""
INTERRUPTS = """
import os, signal, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
os.kill(os.getppid(), signal.SIGINT)
time.sleep(600)
"""
PASSES_AND_FAILS = """
def test_passes(): pass
def test_fails(): assert False
"""


def test_they_run_at_the_same_time_and_what_they_print_is_not_mixed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("one", "other")
    files = [str(tmp_path / name) for name in names]
    steps = [Step(name, ("-c", MEETS, *there)) for name, there in zip(names, (files, reversed(files)), strict=True)]
    assert [(result.name, result.ok) for result in side_by_side(steps, {}, tmp_path)] == [
        ("one", True),
        ("other", True),
    ]
    assert capfd.readouterr().out == (
        "\n── one (beside it: other) ──\none has met other\n\n── other ──\nother has met one\n"
    )


def test_each_has_its_own_settings_and_niceness(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tell = ("-c", "import os; print(os.environ['SHARED'], os.environ['OWN'], os.nice(0))")
    side_by_side([Step("one", tell, {"OWN": "2"}, niceness=3)], {"SHARED": "1", "OWN": "of all"}, tmp_path)
    assert capfd.readouterr().out == f"\n── one ──\n1 2 {os.nice(0) + 3}\n"


@pytest.mark.parametrize(("niceness", "is_apart"), [(0, False), (3, True)])
def test_one_that_is_nice_is_so_to_other_sessions_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], niceness: int, *, is_apart: bool
) -> None:
    tell = ("-c", f"import os; print(os.getsid(0) != {os.getsid(0)})")
    side_by_side([Step("one", tell, niceness=niceness)], {}, tmp_path)
    assert capfd.readouterr().out == f"\n── one ──\n{is_apart}\n"


def test_failures_are_counted_and_leave_the_others_alone(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text(PASSES_AND_FAILS)
    pytest_here = ("-m", "pytest", "-c", os.devnull, "-p", "no:cacheprovider", "-p", "no:django", str(tests))
    found, crashed, fine = side_by_side(
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
def test_none_outlives_whoever_was_interrupted(tmp_path: Path, niceness: int) -> None:
    file = tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        side_by_side([Step("one", ("-c", INTERRUPTS, str(file)), niceness=niceness)], {}, tmp_path)
    assert not Path(f"/proc/{file.read_text()}").exists()


def test_tests_that_need_a_broker_of_their_own_stand_where_they_are_looked_for() -> None:
    marked = {path.relative_to(ROOT) for path in ROOT.glob("tests/**/test_*.py") if "mark.faults" in path.read_text()}
    assert len(marked) > len(WITH_BROKERS)
    assert [str(path) for path in marked if not any(path.is_relative_to(folder) for folder in WITH_BROKERS)] == []
