"""What a consumer of the mailbox's client holds, and what becomes of it by what the broker answers."""

import pytest

from broker_client import Result
from broker_client.clock import now
from broker_client.in_flight import Hand
from broker_client.schedule import Word
from tests.support.mailbox_server import held_message

EXTEND, ACK, NACK, NOT_ATTEMPTED = Word


def result(status: int, code: str) -> Result:
    return Result("receipt-1", status, code, "", None, now() + 30 if code == "extended" else 0.0)


def refused(code: str = "stale_receipt") -> Result:
    return result(409, code)


def hand_with_one(*, is_begun: bool = True) -> Hand:
    hand = Hand()
    hand.take([held_message()])
    if is_begun:
        assert hand.begin()
    return hand


def due(hand: Hand) -> dict[Word, list[str]] | None:
    """Return what is to be said next; None where nothing is left, for which the keeper would wait."""
    return {word: [*receipts] for word, receipts in (hand.due() or {}).items()} if hand._held else None


def all_said(hand: Hand) -> bool:
    """Whether nothing is left to say: the hand is empty."""
    return hand.abandon()


def test_what_was_refused_to_be_extended_is_acknowledged_when_it_is_done() -> None:
    hand = hand_with_one()

    assert hand.answered(EXTEND, [refused("timed_out")]) == {"dlv_1": "timed_out"}
    assert not hand.holds(held_message())
    hand.say(held_message(), ACK)

    assert due(hand) == {ACK: ["receipt-1"]}
    assert hand.answered(ACK, [result(200, "acknowledged")]) == {}
    assert all_said(hand)


def test_what_is_done_while_its_extension_is_refused_is_acknowledged() -> None:
    hand = hand_with_one()
    hand.say(held_message(), ACK)
    hand.answered(EXTEND, [refused()])

    assert due(hand) == {ACK: ["receipt-1"]}


def test_of_what_was_refused_to_be_extended_nothing_is_said_where_it_is_not_done() -> None:
    hand, other = hand_with_one(), hand_with_one()
    hand.answered(EXTEND, [refused()])
    hand.say(held_message(), NACK)
    other.say(held_message(), NACK)
    other.answered(EXTEND, [refused()])

    assert all_said(hand)
    assert all_said(other)


def test_what_was_not_begun_is_returned_untried_when_the_hand_is_closed() -> None:
    hand = Hand()
    hand.take([held_message(1), held_message(2)])
    hand.begin()
    hand.close()
    hand.take([held_message(3)])

    assert hand.begin() is None
    assert due(hand) == {NOT_ATTEMPTED: ["receipt-2", "receipt-3"]}


def test_what_is_let_go_is_not_begun_and_returned_untried(caplog: pytest.LogCaptureFixture) -> None:
    hand = Hand()
    hand.take([held_message(1, seconds=0), held_message(2)])
    begun = hand.begin()

    assert begun
    assert begun.id == "dlv_2"
    assert due(hand) == {NOT_ATTEMPTED: ["receipt-1"]}
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
    hand.take([held_message(seconds=seconds)])
    hand.answered(EXTEND, [result(answer, "extended")] if answer else [])

    assert hand.holds(held_message()) == holds
    assert not hand.holds(held_message(2))
