"""The verdicts, tables and plans of the fault tests."""

import itertools
import json
import time

import pytest
import requests

from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.load.receiver import Receiver
from tests.support.faults.all_work import judged
from tests.support.faults.audit import MAX_SETTLE_SECONDS, Audit, stored_within
from tests.support.faults.edits import SettingHistory
from tests.support.faults.exchanges import SETTLE_SECONDS, Fault, may_be_unsettled
from tests.support.faults.fault_plans import BREAKAGES, Step, steps
from tests.support.faults.figures import Figures
from tests.support.faults.topic_work import ScriptedEndpoint
from tests.support.faults.verdicts import Verdict, markdown, summary

FINE = Audit(audited=9, numbered=5, explained=2, unexplained=0, explanations=("not active", "released"))

KILLED = Verdict("worker-killed", Figures(acknowledged=9, delivered=27, duplicated=1, pause=2.5), seconds=20.4)
QUEUE = Verdict("queue/redis-hung", Figures(acknowledged=5, delivered=5), audit=Audit(5), seconds=30.0)
TOPIC = Verdict("topic/redis-hung", Figures(acknowledged=4, delivered=12, duplicated=2), seconds=0.0)
LOST = Verdict("topic/web-killed", Figures(acknowledged=4, delivered=3, lost=1), reason="call: lost 1")

FINE_FIGURES = Figures(acknowledged=3, delivered=3)

BROKEN = [Fault(10.0, 20.0), Fault(30.0, 30.5)]

MANY = 500

MADE = {"number": 703, "length": 3, "dice": [0.25, 1]}


def of(audit: Audit) -> Verdict:
    verdict = Verdict("some")
    verdict.take(audit)
    return verdict


def test_what_is_explained_passes_and_is_shown() -> None:
    assert str(of(FINE)).endswith(
        "audited 9, numbered 5, explained 2 (not active; released), unexplained 0, seconds 0, passed yes"
    )
    shown = {"audited": 9, "numbered": 5, "explained": 2, "unexplained": 0, "explanations": ["not active", "released"]}
    assert of(FINE).as_object().items() >= {"passed": True, **shown}.items()


@pytest.mark.parametrize(
    ("audit", "reason"),
    [
        (Audit(9, 9, 0, 2, (), ("sent again (delivery 7)",)), "audit: unexplained 2: sent again (delivery 7)"),
        (Audit(0, 0, 0, 0), "audit: nothing was audited"),
    ],
)
def test_what_is_not_explained_does_not_pass_nor_does_an_audit_of_nothing(audit: Audit, reason: str) -> None:
    assert of(audit).as_object().items() >= {"passed": False, "reason": reason}.items()


def test_what_went_wrong_first_is_the_reason() -> None:
    verdict = Verdict("some")
    verdict.fail("call", "lost 1")
    verdict.take(Audit(0, 0, 0, 0))
    assert verdict.reason == "call: lost 1"


def test_a_case_that_was_not_audited_says_nothing_of_it() -> None:
    assert "audited" not in Verdict("some").as_object()
    assert "audited" not in str(Verdict("some"))


def test_every_case_has_a_row_with_its_figures() -> None:
    lines = markdown([KILLED]).splitlines()
    assert lines[0].startswith("| case | passed | acknowledged | delivered | lost |")
    assert lines[2:] == ["| `worker-killed` | yes | 9 | 27 | 0 | 0 | 0 | 1 | 0 | 0 | 2.5 | - | 20.4 |"]


def test_kinds_of_work_are_crossed_with_what_was_broken() -> None:
    crossed, _ = markdown([KILLED, QUEUE, TOPIC, LOST]).split("\n\n")
    assert crossed.splitlines() == [
        "|  | queue | topic |",
        "| --- | ---: | ---: |",
        "| `redis-hung` | 5 | 12 + 2 |",
        "| `web-killed` |  | **no** |",
    ]


def test_the_end_says_what_has_not_passed_and_how_much_was_audited() -> None:
    assert summary([KILLED, QUEUE, LOST], 125.0).splitlines() == [
        "topic/web-killed: call: lost 1",
        "3 cases in 2 minutes, 2 passed; audited 5, unexplained 0",
    ]


@pytest.mark.parametrize(
    ("figures", "max_copies", "wrong"),
    [
        (FINE_FIGURES, 0, []),
        (Figures(delivered=3, duplicated=2, max_per_fault=1), 1, []),
        (Figures(delivered=3, duplicated=900), None, []),
        (Figures(delivered=3, duplicated=1), 0, ["duplicated 1"]),
        (
            Figures(delivered=3, duplicated=2, max_per_fault=2),
            1,
            ["2 copies of a fault, and not 1 at most"],
        ),
        (Figures(delivered=3, lost=1, inverted=2), 1, ["lost 1", "inverted 2"]),
        (Figures(delivered=3, pause=5.5), 1, ["a pause of 5.5 s, and not 5 s at most"]),
        (Figures(), 1, ["nothing was delivered"]),
    ],
)
def test_what_is_wrong_with_an_outcome(figures: Figures, max_copies: int | None, wrong: list[str]) -> None:
    assert [*judged(figures, max_copies, max_delay_seconds=5.0)] == wrong


@pytest.mark.parametrize(
    ("waits", "seconds"),
    [
        ([], SETTLE_SECONDS),
        ([(1.0, 1.2)], SETTLE_SECONDS),
        ([(1.0, 1.2), (2.0, 3.5), (5.0, 5.9)], 3.0),
        ([(1.0, 9.9)], MAX_SETTLE_SECONDS),
        ([(9.0, 10.1)], SETTLE_SECONDS),
        ([(12.0, 13.0)], SETTLE_SECONDS),
        ([(19.9, 24.0)], SETTLE_SECONDS),
        ([(29.0, 31.0)], SETTLE_SECONDS),
        ([(20.1, 22.1), (19.9, 24.0)], 4.0),
    ],
)
def test_what_waited_longest_while_nothing_was_broken_counts_twice(
    waits: list[tuple[float, float]], seconds: float
) -> None:
    assert stored_within(waits, BROKEN) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("answered_at", "settling", "may_be"), [(8.9, 1.0, False), (8.9, 1.2, True), (None, 1.0, True)]
)
def test_what_was_answered_so_long_before_a_fault_may_not_have_been_stored(
    answered_at: float | None, settling: float, may_be: bool
) -> None:
    request = Exchange(1, "dlv_1", 1, flagged=False, altered=False, at=8.0, status=200, answered_at=answered_at)
    assert may_be_unsettled(request, Fault(10.0, 10.1, settling)) is may_be


def planned(seed: int) -> list[Step]:
    return [*itertools.islice(steps(seed), MANY)]


def test_the_same_seed_breaks_the_same() -> None:
    assert planned(7) == planned(7)
    assert planned(7) != planned(8)


def test_everything_is_broken_at_some_time_alone_and_beside_something_else() -> None:
    alone: set[str] = set()
    beside: set[str] = set()
    for one in planned(1):
        (alone if len(one.faults) == 1 else beside).update(fault.breakage.name for fault in one.faults)
    assert alone == {breakage.name for breakage in BREAKAGES}
    assert alone - beside == set()


def test_two_at_once_touch_nothing_in_common() -> None:
    pairs = [one.faults for one in planned(1) if len(one.faults) > 1]
    assert len(pairs) > MANY // 10
    assert not any(first.breakage.touches & second.breakage.touches for first, second in pairs)


def test_most_faults_are_brief_and_some_take_as_long_as_in_their_own_case() -> None:
    faults = [fault for one in planned(1) for fault in one.faults]
    long = [fault for fault in faults if fault.seconds == fault.breakage.seconds > 10]
    assert 0 < len(long) < len(faults) // 5
    assert all(0 < one.after < 10 for one in planned(1))


@pytest.mark.parametrize(
    ("again", "altered"),
    [(MADE, False), (MADE | {"dice": [0.5, 1]}, True), (MADE | {"length": 4}, True), ([], True)],
)
def test_what_a_script_made_is_recognized(receiver: Receiver, again: object, altered: bool) -> None:
    endpoint = ScriptedEndpoint("scripted", receiver)
    for body in (MADE, again):
        requests.post(receiver.url("/scripted"), json.dumps(body), timeout=5).raise_for_status()
    assert [one.altered for one in endpoint.exchanges] == [False, altered]


def test_before_and_after_a_change_one_value_is_in_force_and_during_it_both() -> None:
    setting = SettingHistory("old")
    begun = time.monotonic()
    with setting.changing("new"):
        during = time.monotonic()
    after = time.monotonic()
    assert setting.between(0, begun - 1) == {"old"}
    assert setting.between(during, during) == {"old", "new"}
    assert setting.between(after, after + 1) == {"new"}
    assert setting.between(begun - 1, after + 1) == {"old", "new"}
    assert setting.now == "new"


def test_a_change_that_failed_counts_for_nothing() -> None:
    setting = SettingHistory("old")
    with pytest.raises(ZeroDivisionError), setting.changing("new"):
        raise ZeroDivisionError
    assert setting.between(0, time.monotonic() + 1) == {"old"}
