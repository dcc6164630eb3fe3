"""`./broker faults` runs the cases that are named, and leaves a verdict on each whatever happens."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from broker_project.stack.folders import ROOT

CASES = """
import pytest

from tests.support.faults.verdicts import VERDICT
from tests.support.faults.figures import Figures


@pytest.fixture
def load(request):
    yield
    request.node.stash[VERDICT].figures = Figures(acknowledged=3, pause=0.5)


@pytest.fixture
def no_broker():
    raise OSError("no broker")


@pytest.mark.case("fine")
def test_one(load): pass


def test_lost_something(load):
    assert {"lost": 1} == {}


def test_never_begun(no_broker): pass


@pytest.mark.on_request
@pytest.mark.case("{kind}/on-request")
@pytest.mark.parametrize("kind", ["first", "second"])
def test_on_request(kind, load): pass
"""

COMMAND = """
import sys
from pathlib import Path
from tests.faults import __main__ as command

command.FOLDER = Path(sys.argv[1])
sys.exit(command.faults(*sys.argv[2:]))
"""


def ask(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def with_cases(folder: Path, cases: str) -> Path:
    """Write cases into a folder, with what makes them cases."""
    hooks = "from tests.faults.conftest import pytest_itemcollected, pytest_runtest_makereport, pytest_runtest_setup"
    (folder / "conftest.py").write_text(f"{hooks}\n")
    (folder / "test_cases.py").write_text(cases)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_cases(tmp_path_factory.mktemp("cases"), CASES)


def run(folder: Path, *words: str) -> tuple[int, str, list[dict[str, Any]]]:
    """Run these cases; return the status, what was printed, and the verdicts."""
    answer = ask("-c", COMMAND, folder, "--json", str(folder / "verdicts.json"), *words)
    return answer.returncode, answer.stdout + answer.stderr, json.loads((folder / "verdicts.json").read_text())


def test_every_case_is_listed() -> None:
    answer = ask("-m", "tests.faults", "--list")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert {"worker-killed", "redis-hung", "topic/web-killed"} <= {*answer.stdout.split("\n")}


def test_failed_case_is_reported_with_its_reason_and_in_a_table(folder: Path) -> None:
    status, printed, verdicts = run(folder, "--markdown", str(folder / "verdicts.md"))
    by_case = {one["case"]: one for one in verdicts}
    assert status == 1
    assert {case: one["passed"] for case, one in by_case.items()} == {
        "fine": True,
        "lost-something": False,
        "never-begun": False,
    }
    assert by_case["lost-something"]["acknowledged"] == 3
    assert by_case["lost-something"]["reason"].startswith("call: AssertionError: assert {'lost': 1} == {}")
    assert by_case["never-begun"]["reason"] == "setup: OSError: no broker"
    assert "passed no: setup: OSError: no broker" in printed
    rows = (folder / "verdicts.md").read_text().splitlines()[2:]
    assert [row.split(" | ")[:4] for row in rows[:2]] == [
        ["| `fine`", "yes", "3", "0"],
        ["| `lost-something`", "**no**", "3", "0"],
    ]
    assert "3 cases in 0 minutes, 1 passed; audited 0, unexplained 0" in printed
