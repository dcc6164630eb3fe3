"""Polls that wait: who is woken, in which order, and when somebody looks for messages."""

import threading
from contextlib import ExitStack
from typing import Any

import pytest

from delivery.mailbox.long_poll import MOST_SEATS, Room

SHOP, BANK = 1, 2


@pytest.fixture
def room() -> Room:
    return Room()


def test_forty_eight_polls_wait_and_the_next_one_does_when_one_of_them_leaves(room: Room) -> None:
    with ExitStack() as seats:
        for _ in range(MOST_SEATS - 1):
            assert seats.enter_context(room.seat(SHOP))
        with room.seat(BANK) as last:
            assert last
            with room.seat(SHOP) as one_too_many:
                assert one_too_many is None
        assert seats.enter_context(room.seat(BANK))
    assert (MOST_SEATS, room.waiting()) == (48, {})


def test_who_reads_one_mailbox_with_many_clients_keeps_no_other_out(room: Room) -> None:
    with ExitStack() as seats:
        crowd = [seats.enter_context(room.seat(SHOP)) for _ in range(MOST_SEATS)]
        assert seats.enter_context(room.seat(BANK))
        assert [poll.is_let_go for poll in crowd if poll] == [False] * (MOST_SEATS - 1) + [True]
        assert room.waiting() == {SHOP: MOST_SEATS - 1, BANK: 1}
        assert seats.enter_context(room.seat(SHOP)) is None, "nobody has more"
    assert room.waiting() == {}


def test_a_room_may_have_fewer_seats(room: Room) -> None:
    room.limit(1)
    with room.seat(SHOP) as first, room.seat(BANK) as second:
        assert (first is None, second is None) == (False, True)


def test_a_message_wakes_one_poll_and_the_first_that_came(room: Room) -> None:
    with room.seat(SHOP) as first, room.seat(SHOP) as second, room.seat(BANK) as other:
        assert first
        assert second
        assert other
        room.wake({SHOP: 1})
        assert (first.is_woken, second.is_woken, other.is_woken) == (True, False, False)
        room.wake({SHOP: 1})
        assert not second.is_woken, "the first one takes it"
        room.wake({SHOP: 2})
        assert second.is_woken


def test_who_comes_back_in_vain_keeps_its_place(room: Room) -> None:
    with room.seat(SHOP) as first, room.seat(SHOP) as second:
        assert first
        assert second
        room.wake({SHOP: 1})
        assert (first.wait(0), first.wait(0)) == (True, False)
        room.wake({SHOP: 1})
        assert (first.is_woken, second.is_woken) == (True, False)


def in_thread(act: Any) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("ends", ["woken", "let go", "closed"])
def test_a_poll_that_waits_goes_on_at_once(room: Room, ends: str) -> None:
    found: list[bool] = []
    with room.seat(SHOP) as poll:
        assert poll
        waiting = in_thread(lambda: found.append(poll.wait(3600)))
        {"woken": lambda: room.wake({SHOP: 1}), "let go": poll.let_go, "closed": room.close}[ends]()
        waiting.join(30)
    assert found == [ends == "woken"]


def test_who_looks_for_messages_rests_while_nobody_waits_and_until_there_is_a_hint(room: Room) -> None:
    looks: list[dict[int, int]] = []

    def look() -> None:
        for _ in range(3):
            room.rest(3600)
            looks.append(dict(room.waiting()))

    room.hint([SHOP])  # for whom nobody waits
    looking = in_thread(look)
    with room.seat(SHOP):
        while not looks:  # the first to come is looked after at once
            looking.join(0.001)
        room.hint([BANK])
        room.hint([SHOP])
        while len(looks) < 2:
            looking.join(0.001)
    looking.join(30)  # the last to leave lets the connection go
    assert looks == [{SHOP: 1}, {SHOP: 1}, {}]


def test_who_looks_for_messages_goes_when_the_room_is_closed_and_the_last_has_left(room: Room) -> None:
    rests: list[bool] = []

    def look() -> None:
        while not rests or rests[-1]:
            rests.append(room.rest(3600))

    looking = in_thread(look)
    with room.seat(SHOP):
        room.close()
        assert looking.is_alive()
    looking.join(30)
    assert (looking.is_alive(), rests[-1]) == (False, False)
