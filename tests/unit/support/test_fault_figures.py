"""The judgement of the fault suite: what it must find, and what it must let pass."""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.stack.load.exchanges import Exchange, Published
from tests.support.faults.all_workloads import judged as judge_outcome
from tests.support.faults.audit import Audit
from tests.support.faults.exchanges import SETTLE_SECONDS, TRAVEL_SECONDS, Fault, min_blame
from tests.support.faults.figures import Figures, figures, figures_of_jobs, figures_of_lanes
from tests.support.faults.mailbox_figures import FetchRecord, Record, RequestRecord, ResponseRecord, figures_of_mailbox
from tests.support.faults.verdicts import Verdict

EVENTS = {number: Published(number, "A", number, number + 0.5) for number in range(1, 4)}
"""One call after the other."""
KILLED = Fault(10.5, 10.5)
BROKEN = [Fault(10.0, 20.0), Fault(30.0, 30.5)]
TIME_OUT = 3.0


def got(number: int, sequence: int | None = None, status: int | None = 200, *, flagged: bool = False) -> Exchange:
    return Exchange(number, f"dlv_{number}", sequence or number, flagged, altered=False, at=number, status=status)


def took(number: int, at: float, answered_at: float | None, *, hung_up: bool = False, copy: bool = False) -> Exchange:
    return Exchange(number, f"dlv_{number}", number, copy, False, at, 200, answered_at, hung_up)


FINE = [got(1), got(2), got(3)]


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        (FINE, {}),
        ([got(1, status=503), *FINE], {}),
        ([got(1), got(2), got(2, flagged=True), got(3)], {}),
        ([got(1), got(2)], {"lost": 1}),
        ([got(1), got(2), got(2), got(3)], {"unflagged": 1}),
        ([got(1), got(3), got(2)], {"inverted": 2, "misnumbered": 2}),
        ([got(1), got(2, status=503), got(3), got(2)], {"inverted": 1}),
        ([got(1), got(2, 3), got(3, 4)], {"misnumbered": 1}),
        ([*FINE, Exchange(4, "dlv_4", 4, flagged=False, altered=True, at=4, status=200)], {"altered": 1}),
        ([*FINE, got(100, 4)], {"unexpected": 1}),
    ],
)
def test_faults_in_a_line_are_found(line: list[Exchange], broken: dict[str, int]) -> None:
    assert figures(EVENTS, range(1, 100), {"line": line}).broken == broken


OF_ONE_AND_OF_TWO = [took(1, 10, 11), took(1, 20, 21, copy=True), took(2, 30, 31), took(2, 50, 51, copy=True)]


@pytest.mark.parametrize(
    ("faults", "not_under_way", "max_per_fault"),
    [
        ([], 0, 0),
        ([Fault(10.5, 10.6), Fault(30.5, 30.6)], 0, 1),
        ([Fault(8.0, 10.0 - TRAVEL_SECONDS), Fault(31.0 + SETTLE_SECONDS, 40.0)], 0, 1),
        ([Fault(9.0, 35.0), Fault(30.5, 30.6)], 0, 1),
        ([Fault(10.5, 10.6), Fault(31.1 + SETTLE_SECONDS, 40.0)], 1, 1),
        ([Fault(22.5, 22.6), Fault(50.5, 51.0)], 2, 0),
    ],
)
def test_faults_explain_copies_of_open_requests(faults: list[Fault], not_under_way: int, max_per_fault: int) -> None:
    made = figures(EVENTS, {1, 2}, {"line": OF_ONE_AND_OF_TWO}, faults=faults)
    assert (made.not_under_way, made.max_per_fault, made.duplicated) == (not_under_way, max_per_fault, 2)


def test_what_repeats_a_stored_answer_was_not_under_way() -> None:
    line = [took(1, 10, 11), took(1, 20, 21, copy=True)]
    assert figures(EVENTS, {1}, {"line": line}, faults=[Fault(11.5, 12)]).not_under_way == 0
    line[0].is_stored = True
    assert figures(EVENTS, {1}, {"line": line}, faults=[Fault(11.5, 12)]).not_under_way == 1


def asked(number: int, at: float, *, answered_at: float | None, copy: bool = False, sender: int = 0) -> Exchange:
    status = None if answered_at is None else 200
    return Exchange(number, f"grp_{number}", 0, copy, False, at, status, answered_at, message_id=sender)


DONE = [asked(1, 0.5, answered_at=0.9), asked(2, 5, answered_at=None), asked(2, 7, answered_at=7.1, copy=True)]


def judged_jobs(requests: Sequence[Exchange], *, jobs: int = 2, winners: dict[int, int] | None = None) -> Figures:
    """Judge jobs among which something broke from second 6 on."""
    numbers = range(1, jobs + 1)
    winners = dict.fromkeys(numbers, 1) | (winners or {})
    return figures_of_jobs(numbers, numbers, requests, winners=winners, faults=[Fault(6, 6.5)])


@pytest.mark.parametrize(
    ("requests", "broken"),
    [
        (DONE, {}),
        (DONE[:2], {"lost": 1}),
        ([*DONE[:2], asked(2, 7, answered_at=7.1)], {"unflagged": 1}),
        ([*DONE, asked(1, 8, answered_at=8.1, copy=True)], {"not_under_way": 1}),
        ([*DONE, asked(3, 8, answered_at=8.1)], {"unexpected": 1, "misrecorded": 1}),
    ],
)
def test_lost_and_repeated_jobs_are_found(requests: list[Exchange], broken: dict[str, int]) -> None:
    assert judged_jobs(requests).broken == broken


def test_a_job_that_is_not_recorded_once_is_found() -> None:
    assert judged_jobs(DONE, winners={2: 2}).broken == {"misrecorded": 1}


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, unique=True), min_size=1, max_size=6))
def test_blame_is_shared_as_evenly_as_possible(wanted: list[list[int]]) -> None:
    shares = itertools.product(*wanted)
    assert min_blame(wanted) == min(max(Counter(share).values()) for share in shares)


def request(number: int, at: float, status: int | None = 200, **fields: Any) -> Exchange:
    """Return a request that was answered at once, unless it was not."""
    defaults: dict[str, Any] = {"webhook_id": f"dlv_{number}", "sequence": number, "flagged": False, "altered": False}
    answered_at = None if status is None else at + 0.01
    return Exchange(number=number, at=at, status=status, answered_at=answered_at, **(defaults | fields))


def refused_first() -> list[Exchange]:
    """Return what comes where the first event is refused, and retried after the others have been sent."""
    return [request(1, 10, 500), request(2, 11), request(3, 12), request(1, 13, attempt=2)]


@pytest.mark.parametrize(
    ("requests", "broken"),
    [
        (refused_first(), {}),
        ([*refused_first(), request(1, 14, attempt=3, flagged=True)], {"not_under_way": 1}),
        ([request(1, 10, 500), request(2, 11), request(1, 11.005, attempt=2), request(3, 12)], {}),
        ([request(1, 10), request(2, 11), request(3, 11.005)], {"overlapping": 1}),
        ([request(1, 10), request(2, 11, sequence=3), request(3, 12, sequence=4)], {"misnumbered": 1}),
        ([*refused_first()[:-1], request(1, 13, attempt=2, sequence=4)], {"unflagged": 1}),
    ],
)
def test_only_retries_in_the_retry_lane_may_overtake(requests: list[Exchange], broken: dict[str, int]) -> None:
    assert figures_of_lanes(EVENTS, {1, 2, 3}, requests, faults=[KILLED]).broken == broken


def handed(number: int = 1, at: float = 10.0, redeliveries: int = 0, *, until: float = 0.0) -> FetchRecord:
    receipt = f"{number} at {at}"
    flagged, ends = redeliveries > 0, until or at + TIME_OUT
    return FetchRecord(receipt, "client", number, f"dlv_{number}", redeliveries, flagged, False, at, ends)


def said(
    of: FetchRecord, word: str = "ack", *, at: float = 11.0, status: int = 200, until: float = 0.0
) -> ResponseRecord:
    return ResponseRecord(of.receipt, word, status, "said", at, at + 0.01, until)


def asked_of(of: FetchRecord, word: str, *, at: float = 11.0) -> RequestRecord:
    return RequestRecord(of.receipt, word, at)


def broken(records: list[Record], *, winners: int = 1, sent: list[Exchange] | None = None) -> dict[str, int]:
    """Return what is wrong with the hand-outs of one event."""
    return figures_of_mailbox([1], [1], records, sent=sent or [], winners={1: winners}).broken


FIRST = handed()
AGAIN = handed(at=13.1, redeliveries=1)
HAND_OUT_DONE = said(AGAIN, at=14.0)
EXTENDED = said(FIRST, "extend", at=12.0, until=15.0)
RETURNED = said(FIRST, "nack", at=11.0)
SOON = handed(at=11.1, redeliveries=1)


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([FIRST, said(FIRST)], {}),
        ([FIRST, AGAIN, HAND_OUT_DONE], {}),
        ([FIRST, asked_of(FIRST, "nack"), RETURNED, SOON, said(SOON, at=12.0)], {}),
        ([FIRST, asked_of(FIRST, "nack"), SOON, said(FIRST, "nack", at=11.5, status=409), said(SOON, at=12.0)], {}),
        ([FIRST, asked_of(FIRST, "nack", at=11.5), SOON, said(SOON, at=12.0)], {"overlapping": 1}),
        ([FIRST, AGAIN, said(FIRST, at=13.5, status=409), HAND_OUT_DONE], {}),
        ([FIRST], {"lost": 1}),
        ([FIRST, SOON, said(SOON, at=12.0)], {"overlapping": 1}),
        ([FIRST, EXTENDED, AGAIN, HAND_OUT_DONE], {"overlapping": 1}),
        ([FIRST, said(FIRST), AGAIN, said(AGAIN, at=14.0, status=409)], {"unexpected": 1}),
        ([FIRST, replace(AGAIN, flagged=False), HAND_OUT_DONE], {"unflagged": 1}),
        ([FIRST, replace(AGAIN, redeliveries=0), HAND_OUT_DONE], {"misnumbered": 1}),
        ([replace(FIRST, altered=True), said(FIRST)], {"altered": 1}),
        ([FIRST, said(FIRST), handed(2)], {"unexpected": 1}),
    ],
)
def test_a_message_has_one_holder_at_a_time_and_one_end(records: list[Record], wrong: dict[str, int]) -> None:
    assert broken(records) == wrong


def test_an_acknowledgement_of_a_killed_client_counts_if_it_is_recorded() -> None:
    killed: list[Record] = [FIRST, asked_of(FIRST, "ack")]
    assert broken(killed) == {}
    assert broken(killed, winners=0) == {"lost": 1, "misrecorded": 1}
    assert broken([*killed, said(FIRST, status=409)]) == {"lost": 1}


@pytest.mark.parametrize(
    ("figures", "max_copies", "wrong"),
    [
        (Figures(acknowledged=3, delivered=3), 0, []),
        (Figures(delivered=3, duplicated=2, max_per_fault=1), 1, []),
        (Figures(delivered=3, duplicated=900), None, []),
        (Figures(delivered=3, duplicated=1), 0, ["duplicated 1"]),
        (Figures(delivered=3, duplicated=2, max_per_fault=2), 1, ["2 copies of a fault, and not 1 at most"]),
        (Figures(delivered=3, lost=1, inverted=2), 1, ["lost 1", "inverted 2"]),
        (Figures(delivered=3, pause=5.5), 1, ["a pause of 5.5 s, and not 5 s at most"]),
        (Figures(), 1, ["nothing was delivered"]),
    ],
)
def test_an_outcome_is_judged_by_its_figures(figures: Figures, max_copies: int | None, wrong: list[str]) -> None:
    assert [*judge_outcome(figures, max_copies, max_delay_seconds=5.0)] == wrong


@pytest.mark.parametrize(
    ("audit", "reason"),
    [
        (Audit(9, 5, 2), ""),
        (Audit(9, 9, 0, 2, (), ("sent again (delivery 7)",)), "audit: unexplained 2: sent again (delivery 7)"),
        (Audit(), "audit: nothing was audited"),
    ],
)
def test_a_case_passes_only_if_its_audit_explains_everything(audit: Audit, reason: str) -> None:
    verdict = Verdict("some", Figures(delivered=1))
    verdict.take(audit)
    assert verdict.reason == reason
