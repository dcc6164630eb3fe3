"""What the mailbox's client says of the messages in hand, when, and how long it waits for the answer."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_client.schedule import LEAST_PATIENCE, Held, Word, dues, next_due, patience
from tests.held_messages import message

NOW = 1_000.0
LATER = NOW + 100
NOT_YET = NOW - 0.01
LONG_AGO = NOW - 1


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


EXTEND, ACK, NACK, NOT_ATTEMPTED = Word


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
