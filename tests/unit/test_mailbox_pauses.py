"""How long the mailbox's client waits before it calls again, whatever it is told."""

import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from broker_client import Mailbox, Message, Refused
from broker_client.in_flight import Hand
from broker_client.reader import EMPTY_SECONDS, LONGEST_PAUSE, Pauses, Terms, Worker, pause_after, rest_of_nothing
from tests.played_answers import Trouble
from tests.playing_mailbox import NAME, TOKEN, playing

FORBIDDEN = Trouble(403, {"title": "Forbidden"})
"""Ends whoever would call without end."""


class Resting(Hand):
    """Notes how long it should rest, does not, and is closed after a while."""

    def __init__(self) -> None:
        super().__init__()
        self.rests: list[float] = []

    def rest(self, seconds: float) -> None:
        self.rests.append(seconds)
        if len(self.rests) == 3:
            self.close()


def work(_: Message) -> None:
    """Have nothing to do."""


@pytest.mark.parametrize(
    ("trouble", "least", "longest"),
    [
        (None, 0.0, 1.0),
        (Trouble(204), 0.0, 1.0),
        (Trouble(204, headers={"Retry-After": "0"}), 0.0, 1.0),
        (Trouble(204, headers={"Retry-After": "2"}), 2.0, 3.0),
        (Trouble(204, headers={"Retry-After": "3600"}), 10.0, 10.0),
        (Trouble(503, {"title": "Later"}, {"Retry-After": "0"}), 0.25, 2.0),
        (Trouble(503, {"title": "Later"}, {"Retry-After": "7"}), 7.0, 7.0),
        (Trouble(503, {"title": "Later"}, {"Retry-After": "3600"}), 10.0, 10.0),
    ],
)
def test_a_consumer_that_does_not_wait_for_messages_rests_after_each_call_in_vain(
    trouble: Trouble | None, least: float, longest: float
) -> None:
    hand = Resting()
    with playing() as played:
        played.troubles["next"].extend([trouble or Trouble(204)] * 3 + [FORBIDDEN] * 20)
        Worker(Mailbox(played.url, NAME, TOKEN), work, Terms(10, 0), hand).run()

    assert len(played.calls) == len(hand.rests) == 3
    assert all(least <= seconds <= longest for seconds in hand.rests), hand.rests


@given(st.floats(0, 100), st.none() | st.floats(0, 1e9))
def test_an_empty_mailbox_is_asked_again_after_a_second_and_no_sooner_than_the_broker_wants(
    took: float, wanted: float | None
) -> None:
    rest = rest_of_nothing(took, wanted)

    assert max(0.0, EMPTY_SECONDS - took, min(wanted or 0.0, LONGEST_PAUSE)) <= rest <= LONGEST_PAUSE
    assert rest <= max(EMPTY_SECONDS, 1.5 * (wanted or 0.0))


def test_those_who_are_sent_away_together_do_not_come_again_together() -> None:
    assert len({rest_of_nothing(0.0, 1.0) for _ in range(100)}) > 1


@pytest.mark.parametrize("wanted", [None, 0.0, 3.0, 3600.0])
def test_whoever_cannot_be_reached_is_left_alone_for_a_while_but_not_for_long(wanted: float | None) -> None:
    pauses = Pauses(0.5)
    seconds = [pause_after(Refused(503, "Later", wanted), pauses) for _ in range(20)]
    least = min(wanted or 0.25, LONGEST_PAUSE)

    assert all(least <= one <= LONGEST_PAUSE for one in seconds), seconds
    assert pause_after(requests.ConnectionError(), pauses) >= LONGEST_PAUSE / 2
