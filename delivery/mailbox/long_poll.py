"""Polls that wait in this process for messages: who waits for which mailbox, and who is woken next; no database."""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from delivery.mailbox.seats import MOST_SEATS, who_gives_up_a_seat


class Poll:
    """One that waits for messages of one mailbox; its thread alone calls `wait`."""

    def __init__(self, subscriber_id: int) -> None:
        self.subscriber_id = subscriber_id
        self._rising = threading.Event()
        self._is_let_go = False
        self._is_up = False

    @property
    def is_let_go(self) -> bool:
        """Whether it waits no longer, though nothing has come and its time is not over."""
        return self._is_let_go

    @property
    def is_woken(self) -> bool:
        """Whether it was woken and does not wait again yet: it takes what there is, or has just found nothing."""
        return self._is_let_go or self._rising.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until woken; tell whether to fetch. False: so many seconds are over, or it was let go."""
        if self._is_up:
            self._rising.clear()
        self._is_up = not self._is_let_go and self._rising.wait(seconds)
        return self._is_up and not self._is_let_go

    def wake(self) -> None:
        """Let it fetch."""
        self._rising.set()

    def let_go(self) -> None:
        """Let it wait no longer, and fetch nothing any more."""
        self._is_let_go = True
        self._rising.set()


class Room:
    """Seats for polls that wait; of those for one mailbox, whoever came first is woken first."""

    def __init__(self, seats: int = MOST_SEATS) -> None:
        self._seats = seats
        self._polls: list[Poll] = []
        """In the order in which they came."""
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._is_closed = False

    def limit(self, seats: int) -> None:
        """Have so many seats from now on; whoever has one keeps it."""
        with self._lock:
            self._seats = seats

    @contextmanager
    def seat(self, subscriber_id: int) -> Iterator[Poll | None]:
        """Wait in here for messages of this subscriber's mailbox; None: no seat is free for it."""
        poll = Poll(subscriber_id)
        if not self._admit(poll):
            yield None
            return
        try:
            yield poll
        finally:
            self._dismiss(poll)

    def waiting(self) -> dict[int, int]:
        """Return how many have a seat, by subscriber, those that are woken among them."""
        with self._lock:
            return Counter(poll.subscriber_id for poll in self._polls)

    def wake(self, available: Mapping[int, int]) -> None:
        """Wake a poll for each message, by subscriber; whoever is woken already takes one of them."""
        with self._lock:
            left = Counter(available)
            left.subtract(poll.subscriber_id for poll in self._polls if poll.is_woken)
            for poll in self._polls:
                if not poll.is_woken and left[poll.subscriber_id] > 0:
                    left[poll.subscriber_id] -= 1
                    poll.wake()

    def hint(self, subscriber_ids: Iterable[int]) -> None:
        """Ring the bell if anybody in here waits for one of these mailboxes, which have something new."""
        if not self._polls:
            return
        with self._lock:
            wanted = {poll.subscriber_id for poll in self._polls}
        if not wanted.isdisjoint(subscriber_ids):
            self._bell.set()

    def rest(self, seconds: float) -> bool:
        """Wait until the bell rings: at most so long, or as long as all seats are empty; tell whether anybody may come.

        The bell rings for a hint, for whoever comes first or leaves last, and when the room is closed.
        """
        self._bell.wait(seconds if self.waiting() else None)
        self._bell.clear()
        with self._lock:
            return bool(self._polls) or not self._is_closed

    def close(self) -> None:
        """Let everybody go, and nobody wait in here any more."""
        with self._lock:
            self._is_closed = True
            for poll in self._polls:
                poll.let_go()
        self._bell.set()

    def _admit(self, poll: Poll) -> bool:
        with self._lock:
            if self._is_closed or not self._has_seat_for(poll.subscriber_id):
                return False
            self._polls.append(poll)
            if len(self._polls) == 1:
                self._bell.set()
            return True

    def _has_seat_for(self, subscriber_id: int) -> bool:
        if len(self._polls) < self._seats:
            return True
        given_up = who_gives_up_a_seat([poll.subscriber_id for poll in self._polls], subscriber_id)
        if given_up is not None:
            self._polls.pop(given_up).let_go()
        return given_up is not None

    def _dismiss(self, poll: Poll) -> None:
        with self._lock:
            if poll in self._polls:
                self._polls.remove(poll)
            if not self._polls:
                self._bell.set()


HERE: Final = Room()
"""The polls of this process."""


def hint(subscriber_ids: Iterable[int]) -> None:
    """Say that these subscribers' mailboxes have got something; whoever waits elsewhere finds it a little later."""
    HERE.hint(subscriber_ids)
