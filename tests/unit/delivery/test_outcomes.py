"""Outcomes of a request, legal status changes, and what publishers learn of failures."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.announcements import AnnouncedEvent
from delivery.outcomes import TEAMFORGE, UNKNOWN, Answered, Decision, Outcome, Unreachable, decide, redact_reason
from delivery.statuses import FINAL, LEGAL_CHANGES, UNFINISHED, DeliveryStatus

SECRET = "db-7.internal.example"

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


DECISIONS: dict[Decision, list[Outcome]] = {
    Decision.DELIVERED: [Answered(status) for status in (200, 201, 299)],
    Decision.NOT_SUPPORTED: [Answered(status) for status in (300, 301, 399)],
    Decision.REJECTED: [Answered(status) for status in (400, 408, 429, 499)],
    Decision.DEFER: [Answered(status) for status in (0, 101, 199, 500, 502, 504, 599, 600, 999)],
    Decision.HOLD_THE_LINE: [
        *(Answered(503), Answered(503, retry_after=7.0)),
        *(Unreachable("refused"), Unreachable("timed out", was_sent=True)),
    ],
}
FINAL_STATUS = {
    Decision.DELIVERED: DeliveryStatus.DELIVERED,
    Decision.REJECTED: DeliveryStatus.REJECTED,
    Decision.NOT_SUPPORTED: DeliveryStatus.NOT_SUPPORTED,
}


@pytest.mark.parametrize(("decision", "outcomes"), DECISIONS.items())
def test_each_outcome_has_its_decision_and_final_status(decision: Decision, outcomes: list[Outcome]) -> None:
    assert [decide(outcome, TEAMFORGE) for outcome in outcomes] == [decision] * len(outcomes)
    assert decision.final_status == FINAL_STATUS.get(decision)


@pytest.mark.parametrize(
    ("outcome", "text"), [(Answered(404), "answered 404"), (Unreachable("refused"), "no answer: refused")]
)
def test_an_outcome_says_what_happened(outcome: Outcome, text: str) -> None:
    assert str(outcome) == text


@pytest.mark.behaviour("1.2")
@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("", ""),
        ("answered 503", "answered 503"),
        ("delivery 7 was taken", "delivery 7 was taken"),
        ("cancelled over the API", "cancelled over the API"),
        ("not taken in time", "not taken in time"),
        ("unread for 4 days", "unread for 4 days"),
        ("redeliveries used up: not acknowledged 3 times",) * 2,
        ("purged over the API", "purged over the API"),
        (f"unread for 4 days: {SECRET}", "failed"),
        ("The endpoint answered 200 with more than 1,048,576 bytes.",) * 2,
        ("The endpoint answered 200 with fewer bytes than it promised.",) * 2,
        ("The endpoint answered with the status 999, which cannot be passed on.",) * 2,
        (f"no answer: Could not resolve host: {SECRET}", "no answer: the name of its host was not resolved"),
        (f"no answer: Address not allowed ({SECRET})", "no answer: its address is not allowed"),
        (f"no answer: Failed to connect to {SECRET}:80 after 0 ms: Could not connect", "no answer: no connection"),
        (f"no answer: Failed to connect to {SECRET}:80 after 9 ms: Timeout was reached", "no answer: timed out"),
        ("no answer: Operation timed out after 10 milliseconds with 0 bytes received", "no answer: timed out"),
        (f"no answer: SSL: no alternative certificate subject name matches '{SECRET}'", "no answer: TLS failed"),
        ("no answer: TLS connect error: unexpected eof", "no answer: TLS failed"),
        ("no answer: Empty reply from server", f"no answer: {UNKNOWN}"),
        (f"filter failed: {SECRET}", "filter failed"),
        (f"script failed: Error: answered 503 {SECRET}\n", "script failed"),
        (f"script lost: {SECRET}", "script lost"),
        (f"released; filter failed: {SECRET}", "released; filter failed"),
        (f"not taken in time: no answer: Could not resolve host: {SECRET}\n",
         "not taken in time: no answer: the name of its host was not resolved"),
        (f"answered 200 {SECRET}", "failed"),
    ],
)  # fmt: skip
def test_a_publisher_sees_the_kind_of_failure(reason: str, says: str) -> None:
    assert redact_reason(reason) == says


@pytest.mark.behaviour("1.2")
@given(st.sampled_from(["", "released; ", "no answer: ", "script failed: ", "not taken in time: "]), st.text())
def test_no_text_of_others_goes_through(before: str, text: str) -> None:
    assert "~" not in redact_reason(f"{before}{text}~")


TABLE = """
                 PENDING IN_FLIGHT HELD DELIVERED REJECTED 3xxNOTSUPPORTED REDUNDANT FAILED EXPIRED CANCELLED
PENDING          -       x         x    -         -        -               x         -      x       x
IN_FLIGHT        x       -         x    x         x        x               x         x      x       x
HELD             x       -         -    -         -        -               x         -      x       x
DELIVERED        -       -         -    -         -        -               -         -      -       -
REJECTED         -       -         -    -         -        -               -         -      -       -
3xxNOTSUPPORTED  -       -         -    -         -        -               -         -      -       -
REDUNDANT        -       -         -    -         -        -               -         -      -       -
FAILED           -       -         -    -         -        -               -         -      -       -
EXPIRED          -       -         -    -         -        -               -         -      -       -
CANCELLED        -       -         -    -         -        -               -         -      -       -
"""
COLUMNS, *ROWS = [line.split() for line in TABLE.strip().splitlines()]
EXPECTED = {(row[0], column): mark == "x" for row in ROWS for column, mark in zip(COLUMNS, row[1:], strict=True)}


@pytest.mark.behaviour("10.2")
def test_legal_changes() -> None:
    legal = {(old.value, new.value): new in LEGAL_CHANGES[old] for old in DeliveryStatus for new in DeliveryStatus}
    assert legal == EXPECTED


@pytest.mark.behaviour("10.1")
def test_the_statuses_are_those_of_the_contract() -> None:
    assert [status.value for status in DeliveryStatus if status in UNFINISHED] == ["PENDING", "IN_FLIGHT", "HELD"]
    assert {status.value for status in FINAL} == {*COLUMNS} - {"PENDING", "IN_FLIGHT", "HELD"}


@pytest.mark.behaviour("5.7")
def test_an_announcement_has_the_details_that_are_published_and_no_others() -> None:
    details = {"status": "REJECTED", "reason": "answered 404", "attempts": 3, "body": "secret", "headers": {"A": "b"}}
    event = AnnouncedEvent(
        7, "Broker.Delivery.Rejected", AT, orjson.dumps(details).decode(), "shop", 5, "Order.*", 9, None
    )
    about = {"subscriber": "shop", "subscription": 5, "events": "Order.*", "delivery": 9}
    ended = {"status": "REJECTED", "reason": "answered 404", "attempts": 3}
    assert orjson.loads(event.document) == {"announcement": 7, "at": "2026-03-01T12:00:00+00:00", **about, **ended}


def test_an_announcement_omits_what_does_not_apply() -> None:
    event = AnnouncedEvent(7, "Broker.Line.Resumed", AT, '{"reason": "", "attempts": 0}', None, None, None, None, 4)
    said = {"announcement": 7, "at": "2026-03-01T12:00:00+00:00", "callback": 4, "attempts": 0}
    assert orjson.loads(event.document) == said
