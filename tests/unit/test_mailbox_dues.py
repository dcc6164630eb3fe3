"""What the mailbox's client says of the messages in hand, when, and how long it waits for the answer."""

from datetime import UTC, datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_client import Message, Result
from broker_client.clocks import now
from broker_client.dues import LEAST_PATIENCE, Held, Word, dues, next_due, patience
from broker_client.hands import Hand

NOW = 1_000.0
LATER = NOW + 100
NOT_YET = NOW - 0.01
LONG_AGO = NOW - 1


def message(number: int = 1, *, seconds: float = 30.0) -> Message:
    return Message(
        receipt=f"receipt-{number}",
        id=f"dlv_{number}",
        delivery_id=number,
        message_id=number,
        event_type="Shop.Order.Paid",
        subscription_id=7,
        published_at=datetime(2026, 11, 22, tzinfo=UTC),
        in_flight_until=datetime(2026, 11, 22, tzinfo=UTC),
        held_until=now() + seconds,
        redeliveries=0,
        possible_duplicate=False,
        content_type="",
        headers={},
        body=b"",
    )


def held(  # what the rules ask of one message
    number: int,
    *,
    word: Word | None = None,
    known_at: float = LONG_AGO,
    extend_at: float = LATER,
    until: float = LATER,
    is_lost: bool = False,
) -> Held:
    return Held(message(number), until, extend_at, is_begun=True, is_lost=is_lost, word=word, known_at=known_at)


EXTEND, ACK, NACK, UNTRIED = Word


@pytest.mark.parametrize(
    ("hand", "said"),
    [
        ([], []),
        ([held(1)], []),
        ([held(1, extend_at=NOW)], [(EXTEND, [1])]),
        ([held(1, extend_at=NOW), held(2)], [(EXTEND, [1, 2])]),
        ([held(1, extend_at=NOW), held(2, is_lost=True)], [(EXTEND, [1])]),
        ([held(1, extend_at=NOW, is_lost=True)], []),
        ([held(1, word=ACK, known_at=NOW)], [(ACK, [1])]),
        ([held(1, word=ACK, known_at=NOT_YET), held(2)], []),
        ([held(1, word=ACK), held(2)], [(ACK, [1])]),
        ([held(1, word=ACK), held(2, word=ACK, known_at=NOT_YET), held(3)], [(ACK, [1, 2])]),
        ([held(1, word=ACK), held(2, word=NACK), held(3, extend_at=NOW)], [(EXTEND, [3]), (ACK, [1]), (NACK, [2])]),
    ],
)
def test_what_is_due_is_said_of_all_at_once_and_the_most_urgent_first(
    hand: list[Held], said: list[tuple[Word, list[int]]]
) -> None:
    assert [*dues(hand, NOW).items()] == [(word, [f"receipt-{one}" for one in numbers]) for word, numbers in said]


@pytest.mark.parametrize(
    ("hand", "moment"),
    [
        ([], None),
        ([held(1)], LATER),
        ([held(1), held(2, extend_at=NOW + 7)], NOW + 7),
        ([held(1, extend_at=NOW + 7, is_lost=True)], None),
        ([held(1, word=ACK, known_at=NOW, is_lost=True), held(2)], NOW + 0.05),
    ],
)
def test_the_next_moment_at_which_there_is_something_to_say(hand: list[Held], moment: float | None) -> None:
    assert next_due(hand) == (None if moment is None else pytest.approx(moment))


@pytest.mark.parametrize(
    ("hand", "seconds"),
    [
        ([], inf),
        ([held(1, until=NOW + 30)], 10.0),
        ([held(1, until=NOW + 30), held(2, until=NOW + 12)], 4.0),
        ([held(1, until=NOW + 30), held(2, until=NOW + 12, word=ACK)], 4.0),
        ([held(1, until=NOW + 30), held(2, until=NOW)], 10.0),
        ([held(1, until=NOW + 30), held(2, until=NOW + 12, is_lost=True)], 10.0),
        ([held(1, until=NOW)], inf),
        ([held(1, until=NOW + 1)], LEAST_PATIENCE),
    ],
)
def test_the_less_time_is_left_the_sooner_a_call_is_made_again(hand: list[Held], seconds: float) -> None:
    assert patience(hand, NOW) == seconds


@given(st.floats(8, 43_200), st.floats(0.25, 10.0))
def test_what_hangs_each_time_is_tried_three_times_at_least_before_the_time_is_over(until: float, pause: float) -> None:
    one = held(1, until=NOW + until)
    at, tries = NOW + until / 3, 0
    while at < one.until:
        at += patience([one], at)
        at += min(pause, patience([one], at))
        tries += 1

    assert tries >= 3


def result(status: int, code: str) -> Result:
    return Result("receipt-1", status, code, "", None, now() + 30 if code == "extended" else 0.0)


def refused(code: str = "stale_receipt") -> Result:
    return result(409, code)


def hand_with_one(*, is_begun: bool = True) -> Hand:
    hand = Hand()
    hand.take([message()])
    if is_begun:
        assert hand.begin()
    return hand


def all_said(hand: Hand) -> bool:
    """Whether nothing is left to say: the hand is empty."""
    return hand.abandon()


def test_what_was_refused_to_be_extended_is_acknowledged_when_it_is_done() -> None:
    hand = hand_with_one()

    assert hand.answered(EXTEND, [refused("timed_out")]) == {"dlv_1": "timed_out"}
    assert not hand.holds(message())
    hand.say(message(), ACK)

    assert hand.due() == {ACK: ["receipt-1"]}
    assert hand.answered(ACK, [result(200, "acknowledged")]) == {}
    assert all_said(hand)


def test_what_is_done_while_its_extension_is_refused_is_acknowledged() -> None:
    hand = hand_with_one()
    hand.say(message(), ACK)
    hand.answered(EXTEND, [refused()])

    assert hand.due() == {ACK: ["receipt-1"]}


def test_of_what_was_refused_to_be_extended_nothing_is_said_where_it_is_not_done() -> None:
    hand, other = hand_with_one(), hand_with_one()
    hand.answered(EXTEND, [refused()])
    hand.say(message(), NACK)
    other.say(message(), NACK)
    other.answered(EXTEND, [refused()])

    assert all_said(hand)
    assert all_said(other)


def test_what_was_not_begun_is_returned_untried_when_the_hand_is_closed() -> None:
    hand = Hand()
    hand.take([message(1), message(2)])
    hand.begin()
    hand.close()
    hand.take([message(3)])

    assert hand.begin() is None
    assert hand.due() == {UNTRIED: ["receipt-2", "receipt-3"]}


def test_what_is_let_go_is_not_begun_and_returned_untried(caplog: pytest.LogCaptureFixture) -> None:
    hand = Hand()
    hand.take([message(1, seconds=0), message(2)])
    begun = hand.begin()

    assert begun
    assert begun.id == "dlv_2"
    assert hand.due() == {UNTRIED: ["receipt-1"]}
    assert "mailbox.let_go id=dlv_1" in caplog.text


def test_what_was_refused_to_be_extended_is_not_begun() -> None:
    hand = hand_with_one(is_begun=False)
    hand.answered(EXTEND, [refused()])

    assert hand.begin() is None
    assert all_said(hand)


@pytest.mark.parametrize(("seconds", "answer", "holds"), [(30, None, True), (0, None, False), (0, 200, True)])
def test_a_message_is_ours_for_as_long_as_its_time_or_what_was_added_to_it(
    seconds: float, answer: int | None, holds: bool
) -> None:
    hand = Hand()
    hand.take([message(seconds=seconds)])
    hand.answered(EXTEND, [result(answer, "extended")] if answer else [])

    assert hand.holds(message()) == holds
    assert not hand.holds(message(2))
