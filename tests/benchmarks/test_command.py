"""The command line of `./broker bench`."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import command
from benchmarks.command import SCENARIOS, parser
from broker_project.stack.folders import ROOT, AlreadyRunning, StackFolder, locked


def test_the_list_names_every_scenario() -> None:
    words = (sys.executable, "-m", "broker_project.stack", "bench", "--list")
    answer = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert [line.split()[0] for line in answer.stdout.splitlines()] == list(SCENARIOS)


@pytest.mark.parametrize(
    ("words", "names"),
    [(["queue"], ["queue.fast", "queue.slow"]), (["soak", "queue.slow"], ["soak", "queue.slow"]), ([], [])],
)
def test_scenarios_are_named_alone_or_by_what_their_names_begin_with(words: list[str], names: list[str]) -> None:
    assert [name for found in parser().parse_args(words).scenarios for name in found] == names


def test_an_unknown_scenario_is_refused_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parser().parse_args(["topic.dense", "topic.dens"])
    assert f"there is no scenario 'topic.dens'; there are {', '.join(SCENARIOS)}" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-1", "nan", "inf", "soon"])
def test_a_time_must_be_a_number_above_zero(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parser().parse_args([f"--seconds={number}"])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "is not a number above 0" in printed.err


def test_where_the_figures_go_must_be_writable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        parser().parse_args(["--json", str(tmp_path / "no" / "figures.json")])
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_second_run_is_refused_and_leaves_the_data_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(command, "forget_variables", lambda: None)  # of this process, whose other tests need them
    monkeypatch.setenv("BROKER_SUMMARIES", "0")
    folder = StackFolder(tmp_path)
    data = folder.made("postgres") / "data"
    data.touch()
    with locked(folder.lock), pytest.raises(AlreadyRunning, match="is already running in"):
        command.main("topic.dense")
    assert data.exists()
