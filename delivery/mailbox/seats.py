"""How many polls may wait in a process, and who gives up a seat where there is none left: pure rules."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

MOST_SEATS: Final = 48
"""Beside 64 calls, these many leave the other threads of a web process to publishers."""


def seats_beside(threads: int) -> int:
    """Return how many of the requests that a web process works on at a time may be polls that wait: 3 of 8."""
    return min(MOST_SEATS, threads * 3 // 8)


def who_gives_up_a_seat(taken: Sequence[int], newcomer: int) -> int | None:
    """Return which seat is given up for a poll that comes; None: none is, and it has to come again.

    `taken` says of each seat whose mailbox it is for, in the order in which they were taken. All may be for one, until
    somebody comes for another: then whoever came last for the mailbox that has the most goes, but only for one that has
    fewer even with it. Else the two would take the seat from each other again and again.
    """
    seats = Counter(taken)
    most = max(seats.values(), default=0)
    if seats[newcomer] + 1 >= most:
        return None
    return max(number for number, mailbox in enumerate(taken) if seats[mailbox] == most)
