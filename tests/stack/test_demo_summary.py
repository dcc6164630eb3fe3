"""The demo's summary: what is said of it, and what it has to agree with."""

from dataclasses import replace

import pytest
from rich.console import Console

from broker_project.stack.demo.summary import Summary, contradictions, table
from broker_project.stack.demo.verdict import Account, Archived, Jobs, Questions, Verdict, Whole

ACCOUNT = Account(
    expected=100,
    delivered=90,
    rejected=10,
    set_aside=0,
    requests=105,
    lost=0,
    duplicated=0,
    inverted=0,
    wrong=0,
    p50=0.1,
    p95=0.2,
)
JOBS = Jobs(
    published=20,
    done_by={"printer-1": 20},
    requests={"printer-1": 20},
    lost=0,
    duplicated=0,
    wrong=0,
    misrecorded=0,
    wanted=1,
    replied=1,
)
ARCHIVED = Archived(
    expected=7,
    done_by={"archive-1": 7},
    handed_to={"archive-1": 8},
    returned=1,
    lost=0,
    duplicated=0,
    wrong=0,
    misrecorded=0,
    p50=0.1,
    p95=0.2,
)
WHOLE = Whole(75, Verdict(50, 50, 100, {"billing": ACCOUNT}), ARCHIVED, JOBS, Questions(5, 5, 0.1, 0.2))
"""90 of topics, 7 fetched ones, 20 jobs, a reply and 5 calls were delivered."""

RIGHT = Summary(
    seconds=12.34,
    statuses={"DELIVERED": 123, "REJECTED": 10, "REDUNDANT": 40},
    delivered=123,
    eligible=133,
    p50_ms=12.0,
    p95_ms=4_100.0,
    messages=75,
    bytes=1_250_000,
    senders=(4, 6, 5, 3, 2),
    audited=100,
)


def test_a_summary_that_says_what_the_logs_say_contradicts_nothing() -> None:
    assert [*contradictions(RIGHT, WHOLE)] == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (replace(RIGHT, messages=74), "the summary says published 74, the logs say 75"),
        (
            replace(RIGHT, statuses={"DELIVERED": 124, "REJECTED": 10}),
            "the summary says delivered 124, the logs say 123",
        ),
        (replace(RIGHT, statuses={"DELIVERED": 123}), "the summary says rejected 0, the logs say 10"),
        (
            replace(RIGHT, unexplained=1),
            "the ordering audit found 1 deliveries out of order or twice, and no reason for it",
        ),
    ],
)
def test_a_summary_that_says_something_else_is_found_out(wrong: Summary, said: str) -> None:
    assert [*contradictions(wrong, WHOLE)] == [said]


def test_the_figures_are_shown_as_people_read_them() -> None:
    console = Console(width=100)
    with console.capture() as shown:
        console.print(table(RIGHT))
    lines = [" ".join(line.split()) for line in shown.get().splitlines() if line.strip()]
    assert lines[0] == "SUMMARY: what Spark read of it in the broker's database, in 12.3 s"
    assert lines[-6:] == [
        "deliveries 123 DELIVERED, 40 REDUNDANT, 10 REJECTED",
        "success rate 92.5 % of 133",
        "publish to delivery p50 12.0 ms, p95 4.1 s",
        "volume 75 events, 1.2 MB",
        "QUEUE senders 4, 6, 5, 3, 2 jobs; the busiest has 1.50 times the mean",
        "ordering audit 100 checked, 0 unexplained",
    ]
