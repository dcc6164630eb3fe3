"""The messages in flight at one consumer of the client: which calls are due, and what the broker's results change."""

from datetime import timedelta
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_client import Mailbox, ReceiptResult
from broker_client.in_flight import MIN_TIMEOUT, Disposition, InFlightMessage, InFlightMessages, call_timeout, due_calls
from broker_client.message import now
from tests.support.mailbox_server import PlayedMailbox, held_message

EXTEND, ACK, NACK, NOT_ATTEMPTED = Disposition
NOW = 1_000.0
LATER = NOW + 100
NOT_YET = NOW - 0.01
LONG_AGO = NOW - 1


def held(
    number: int,
    *,
    disposition: Disposition | None = None,
    resolved_at: float = LONG_AGO,
    extend_at: float = LATER,
    until: float = LATER,
    is_lost: bool = False,
) -> InFlightMessage:
    return InFlightMessage(
        held_message(number),
        until,
        extend_at,
        is_started=True,
        is_lost=is_lost,
        disposition=disposition,
        resolved_at=resolved_at,
    )


@pytest.mark.parametrize(
    ("messages", "calls"),
    [
        ([], []),
        ([held(1)], []),
        ([held(1, extend_at=NOW)], [(EXTEND, [1])]),
        ([held(1, extend_at=NOW), held(2)], [(EXTEND, [1, 2])]),
        ([held(1, extend_at=NOW), held(2, is_lost=True)], [(EXTEND, [1])]),
        ([held(1, extend_at=NOW, is_lost=True)], []),
        ([held(1, disposition=ACK, resolved_at=NOW)], [(ACK, [1])]),
        ([held(1, disposition=ACK, resolved_at=NOT_YET), held(2)], []),
        ([held(1, disposition=ACK), held(2)], [(ACK, [1])]),
        ([held(1, disposition=ACK), held(2, disposition=ACK, resolved_at=NOT_YET), held(3)], [(ACK, [1, 2])]),
        (
            [held(1, disposition=ACK), held(2, disposition=NACK), held(3, extend_at=NOW)],
            [(EXTEND, [3]), (ACK, [1]), (NACK, [2])],
        ),
    ],
)
def test_due_calls_are_made_for_all_messages_at_once_the_most_urgent_first(
    messages: list[InFlightMessage], calls: list[tuple[Disposition, list[int]]]
) -> None:
    expected = [(disposition, [f"receipt-{one}" for one in numbers]) for disposition, numbers in calls]
    assert [*due_calls(messages, NOW).items()] == expected


@pytest.mark.parametrize(
    ("message", "moment"),
    [
        (held(1), LATER),
        (held(1, extend_at=NOW + 7, is_lost=True), inf),
        (held(1, disposition=ACK, resolved_at=NOW, is_lost=True), NOW + 0.05),
    ],
)
def test_a_call_is_due_at_the_extension_or_shortly_after_the_end(message: InFlightMessage, moment: float) -> None:
    assert message.due_at == pytest.approx(moment)


@pytest.mark.parametrize(
    ("messages", "seconds"),
    [
        ([], inf),
        ([held(1, until=NOW + 30)], 10.0),
        ([held(1, until=NOW + 30), held(2, until=NOW + 12)], 4.0),
        ([held(1, until=NOW + 30), held(2, until=NOW + 12, disposition=ACK)], 4.0),
        ([held(1, until=NOW + 30), held(2, until=NOW)], 10.0),
        ([held(1, until=NOW + 30), held(2, until=NOW + 12, is_lost=True)], 10.0),
        ([held(1, until=NOW)], inf),
        ([held(1, until=NOW + 1)], MIN_TIMEOUT),
    ],
)
def test_a_call_times_out_sooner_the_less_time_is_left(messages: list[InFlightMessage], seconds: float) -> None:
    assert call_timeout(messages, NOW) == seconds


@given(st.floats(8, 43_200), st.floats(0.25, 10.0))
def test_a_hanging_call_is_tried_at_least_three_times_in_the_time_left(until: float, pause: float) -> None:
    one = held(1, until=NOW + until)
    at, tries = NOW + until / 3, 0
    while at < one.until:
        at += call_timeout([one], at)
        at += min(pause, call_timeout([one], at))
        tries += 1
    assert tries >= 3


@pytest.mark.parametrize("ahead", [timedelta(days=-1), timedelta(0), timedelta(days=1)])
def test_time_in_flight_counts_from_before_the_request_and_ignores_clock_differences(
    played: PlayedMailbox, mailbox: Mailbox, ahead: timedelta
) -> None:
    played.clock_is_ahead = ahead
    played.put(b"1")
    before = now()
    (message,) = mailbox.fetch().messages
    (result,) = mailbox.extend([message.receipt])
    assert before + 30 <= message.held_until <= played.calls[0].at + 30
    assert message.held_until <= result.held_until <= played.calls[1].at + 30
    assert 0 < message.seconds_left <= 30


def test_time_in_flight_counts_from_after_a_long_poll(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.waited = 19.5
    played.put(b"1")
    before = now()
    (message,) = mailbox.fetch(wait_seconds=20).messages
    assert before + 49.5 <= message.held_until <= played.calls[0].at + 49.5


def result(status: int, code: str) -> ReceiptResult:
    return ReceiptResult("receipt-1", status, code, "", None, now() + 30 if code == "extended" else 0.0)


STALE = [result(409, "stale_receipt")]


def one_in_flight() -> InFlightMessages:
    in_flight = InFlightMessages()
    in_flight.add([held_message()])
    assert in_flight.start_next()
    return in_flight


def next_calls(in_flight: InFlightMessages) -> dict[Disposition, list[str]]:
    """Return the next calls; fail where the acknowledger would wait for ever."""
    assert in_flight._messages
    return {disposition: [*receipts] for disposition, receipts in (in_flight.wait_for_calls() or {}).items()}


def is_empty(in_flight: InFlightMessages) -> bool:
    return in_flight.abandon()


def test_a_message_done_while_its_extension_is_refused_is_acknowledged() -> None:
    in_flight = one_in_flight()
    in_flight.resolve(held_message(), ACK)
    in_flight.apply_results(EXTEND, STALE)
    assert next_calls(in_flight) == {ACK: ["receipt-1"]}


def test_a_failed_message_that_could_not_be_extended_is_not_returned() -> None:
    before, after = one_in_flight(), one_in_flight()
    before.apply_results(EXTEND, STALE)
    before.resolve(held_message(), NACK)
    after.resolve(held_message(), NACK)
    after.apply_results(EXTEND, STALE)
    assert is_empty(before)
    assert is_empty(after)


def test_a_message_that_timed_out_is_not_started_but_returned(caplog: pytest.LogCaptureFixture) -> None:
    in_flight = InFlightMessages()
    in_flight.add([held_message(1, seconds=0), held_message(2)])
    started = in_flight.start_next()
    assert started
    assert started.id == "dlv_2"
    assert next_calls(in_flight) == {NOT_ATTEMPTED: ["receipt-1"]}
    assert "mailbox.dropped id=dlv_1" in caplog.text


@pytest.mark.parametrize(("seconds", "status", "holds"), [(30, None, True), (0, None, False), (0, 200, True)])
def test_a_message_is_held_until_its_time_out_or_extension(seconds: float, status: int | None, holds: bool) -> None:
    in_flight = InFlightMessages()
    in_flight.add([held_message(seconds=seconds)])
    in_flight.apply_results(EXTEND, [result(status, "extended")] if status else [])
    assert in_flight.holds(held_message()) == holds
    assert not in_flight.holds(held_message(2))
