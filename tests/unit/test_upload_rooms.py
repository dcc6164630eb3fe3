"""Room for bodies: how much of it one has, whoever the others are."""

import pytest

from broker_project.server.uploads import Claim, Room

MOST, MOST_EACH = 10, 6


@pytest.fixture
def room() -> Room:
    return Room(MOST, MOST_EACH)


def test_one_has_a_share_and_leaves_the_rest_to_others(room: Room) -> None:
    one, same, other = Claim(room, "one"), Claim(room, "one"), Claim(room, "other")
    assert [one.take(4), same.take(2), same.take(1), one.take(1)] == [True, True, False, False]
    assert [other.take(4), other.take(1)] == [True, False]


def test_what_is_given_back_is_there_again_for_everybody(room: Room) -> None:
    one, other = Claim(room, "one"), Claim(room, "other")
    assert [one.take(6), other.take(4)] == [True, True]
    one.release()
    one.release()
    assert [other.take(2), Claim(room, "third").take(4), Claim(room, "one").take(1)] == [True, True, False]


def test_a_claim_that_is_refused_takes_nothing(room: Room) -> None:
    refused = Claim(room, "one")
    assert refused.take(7) is False
    refused.release()
    assert Claim(room, "one").take(6)
