"""When the client extends and acknowledges, whatever the clocks say."""

from datetime import timedelta
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_client import Mailbox
from broker_client.clock import now
from broker_client.schedule import MIN_PATIENCE, Held, Word, dues, next_due, patience
from tests.support.mailbox_server import PlayedMailbox, held_message

NOW = 1_000.0
LATER = NOW + 100
NOT_YET = NOW - 0.01
LONG_AGO = NOW - 1


EXTEND, ACK, NACK, NOT_ATTEMPTED = Word


def held(  # what the rules ask of one message
    number: int,
    *,
    word: Word | None = None,
    known_at: float = LONG_AGO,
    extend_at: float = LATER,
    until: float = LATER,
    is_lost: bool = False,
) -> Held:
    return Held(held_message(number), until, extend_at, is_begun=True, is_lost=is_lost, word=word, known_at=known_at)


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
        ([held(1, until=NOW + 1)], MIN_PATIENCE),
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


@pytest.mark.parametrize("ahead", [timedelta(days=-1), timedelta(0), timedelta(days=1)])
def test_a_message_is_held_from_before_it_was_asked_for_whatever_the_clocks_say(
    played: PlayedMailbox, mailbox: Mailbox, ahead: timedelta
) -> None:
    played.clock_is_ahead = ahead
    played.put(b"1")
    before = now()

    (message,) = mailbox.next().messages
    (result,) = mailbox.extend([message.receipt])

    assert before + 30 <= message.held_until <= played.calls[0].at + 30
    assert message.held_until <= result.held_until <= played.calls[1].at + 30
    assert 0 < message.seconds_left <= 30


def test_what_a_call_has_waited_for_is_held_from_then_on(played: PlayedMailbox, mailbox: Mailbox) -> None:
    played.waited = 19.5
    played.put(b"1")
    before = now()

    (message,) = mailbox.next(wait=20).messages

    assert before + 49.5 <= message.held_until <= played.calls[0].at + 49.5
