"""`./broker sizing` says what a load needs: the same costs, told apart by events and deliveries, scaled."""

import json
from pathlib import Path

import pytest

from benchmarks.sizing import BATCHED_BODY_BYTES, COST_NAMES, CPU_NAMES, Costs, Traffic, machines, main, row
from broker_project.stack.folders import ROOT

SINGLE, FANNED, DENSE, FEW, FEWEST = 1_000.0, 200.0, 400.0, 5_000.0, 9_000.0
"""For each delivery."""
FIGURES = [
    *({"scenario": "publish.single", "figure": f"{name}_64", "value": SINGLE} for name in COST_NAMES),
    *({"scenario": "publish.fanout50", "figure": name, "value": FANNED} for name in COST_NAMES),
    *({"scenario": "topic.dense", "figure": name, "value": DENSE} for name in COST_NAMES),
    *({"scenario": "publish.steady", "figure": f"{name}_200", "value": FEW} for name in CPU_NAMES),
    *({"scenario": "publish.steady", "figure": f"{name}_50", "value": FEWEST} for name in CPU_NAMES),
    {"scenario": "publish.single", "figure": "delivered_64", "value": 2_000.0},
]


@pytest.mark.parametrize(
    ("events", "cpu"),
    [
        (10, 10 * FEWEST),
        (50, 50 * FEWEST),
        (125, (50 * FEWEST + 200 * FEW) / 2),
        (200, 200 * FEW),
        (1_100, (200 * FEW + 2_000 * SINGLE) / 2),
        (2_000, 2_000 * SINGLE),
        (6_000, 6_000 * SINGLE),
    ],
)
def test_single_events_cost_what_was_measured_and_more_each_where_fewer_come(events: float, cpu: float) -> None:
    used = Costs.of(FIGURES, in_batches=False).a_second(events, 1, 0)
    assert {name: used[name] for name in CPU_NAMES} == pytest.approx(dict.fromkeys(CPU_NAMES, cpu))
    assert used["disk"] == pytest.approx(events * SINGLE)


def test_deliveries_cost_what_was_measured() -> None:
    costs = Costs.of(FIGURES, in_batches=False)
    assert costs.a_second(2_000, 50, 0) == pytest.approx(dict.fromkeys(COST_NAMES, 2_000 * 50 * FANNED))


def test_batches_were_measured_with_larger_bodies() -> None:
    costs = Costs.of(FIGURES, in_batches=True)
    assert costs.a_second(2, 1, BATCHED_BODY_BYTES)["CPU of web"] == pytest.approx(2 * DENSE)
    assert costs.event["disk"] == 0.0  # all of it was the body


def test_a_larger_body_costs_its_bytes_once_in_the_log_and_once_on_disk() -> None:
    costs = Costs.of(FIGURES, in_batches=False)
    more = {name: costs.a_second(10, 3, 1_300)[name] - costs.a_second(10, 3, 300)[name] for name in COST_NAMES}
    assert {name for name in COST_NAMES if more[name]} == {"WAL", "disk"}
    assert (more["WAL"], more["disk"]) == pytest.approx((10_000, 10_000))


def test_a_row_has_cores_that_are_busy_for_three_fifths_and_the_disk_of_all_days() -> None:
    found = [*row(Costs.of(FIGURES, in_batches=False), Traffic(fan_out=1, body_bytes=300, days=2), 6_000)]
    assert found == ["6,000", "6,000", *["10.0"] * 4, "6.0", "1,037", "PostgreSQL on 10 cores, 8 of 4 cores"]


@pytest.mark.parametrize(
    ("postgres", "others", "expected"),
    [
        (0.9, 1.1, "one of 2 cores"),
        (7.0, 9.1, "PostgreSQL on 8 cores, 3 of 4 cores"),
        (33.0, 1.0, "more than one PostgreSQL carries"),
    ],
)
def test_machines_have_the_cores(postgres: float, others: float, expected: str) -> None:
    assert machines({"postgres": postgres, "web": others}) == expected


def test_the_command_takes_figures_of_another_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    file.write_text(json.dumps(FIGURES))
    assert main(str(file), "--events", "6000", "--body", "300", "--days", "2") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("| 6,000 | 6,000 | 10.0 |")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[]", "lacks the figure 'publish.single CPU of web_64': write it with ./broker bench publish.single"),
        ("{", "cannot be read: Expecting property name"),
    ],
)
def test_a_file_without_the_figures_is_refused(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    file.write_text(text)
    with pytest.raises(SystemExit, match=r"^2$"):
        main(str(file))
    assert reason in capsys.readouterr().err


def test_the_documentation_has_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0
    costs, needs = capsys.readouterr().out.strip().split("\n\n")
    text = (ROOT / "docs" / "explanation" / "costs.md").read_text()
    assert (costs in text, needs in text) == (True, True)
