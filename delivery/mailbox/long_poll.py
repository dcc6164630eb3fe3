"""Long polls: wait for messages, and wake one poll for each (contract 9.1)."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final, NamedTuple

import structlog
from django.db import Error

from broker_project.core.db import forget_connection, give_connection_back, rows
from delivery.mailbox.available import available, in_flight
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.mailbox import Box, Fetched

MAX_SEATS: Final = 48
"""Beside 64 calls, these many leave the other threads of a web process to publishers."""

EVERY_SECONDS: Final = 0.05
"""How long a message of which there was no hint may lie there."""
BETWEEN_SECONDS: Final = 0.005
"""After a look, before the next one, however many hints there are."""
AFTER_FAILURE_SECONDS: Final = 0.5


log = structlog.get_logger(__name__)


_start_lock: Final = threading.Lock()

Departure = Callable[[], "Future[None]"]
"""Begins to watch the client, and returns what is done once it has hung up."""


def seats_beside(threads: int) -> int:
    """Return how many of the requests that a web process works on at a time may be polls that wait: 3 of 8."""
    return min(MAX_SEATS, threads * 3 // 8)


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

    def __init__(self, seats: int = MAX_SEATS) -> None:
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


LOOK: Final = f"""
SELECT w.subscriber_id, a.number
  FROM unnest(%s::bigint[], %s::int[]) AS w (subscriber_id, waiting)
  JOIN subscriptions_subscriber u ON u.id = w.subscriber_id AND u.status = 'ACTIVE'
 CROSS JOIN LATERAL (
   SELECT count(*) AS number FROM (
     SELECT FROM (SELECT s.id, u.max_redeliveries FROM subscriptions_subscription s
                   WHERE s.subscriber_id = w.subscriber_id AND s.is_fetchable) b
      CROSS JOIN LATERAL ({available("w.waiting")}) d
      LIMIT CASE WHEN u.mailbox_ordered THEN 1 ELSE w.waiting END) d) a
 WHERE a.number > 0 AND NOT (u.mailbox_ordered AND {in_flight("w.subscriber_id")})
"""
"""How many messages there are for each of these mailboxes, as far as there are polls for them.

For an ordered one there is one at a time (contract 9.7).
"""


class MailboxPoller(threading.Thread):
    """Looks for messages as long as polls wait in a room, and wakes those for which there is one."""

    def __init__(self, room: Room) -> None:
        super().__init__(name="mailboxes", daemon=True)
        self._room = room

    def run(self) -> None:
        """Look again and again until the room is closed; it holds a connection only while somebody waits.

        Whatever fails, closing a broken connection too, it goes on: nobody else would wake those who wait.
        """
        is_broken = False
        while self._room.rest(EVERY_SECONDS):
            try:
                if is_broken:
                    forget_connection()
                self.look()
                is_broken = False
            except Error as failure:
                log.warning("mailboxes.database_failed", reason=failure)
                is_broken = True
            except Exception:
                log.exception("mailboxes.failed")
                is_broken = True
            time.sleep(AFTER_FAILURE_SECONDS if is_broken else BETWEEN_SECONDS)
        forget_connection()

    def look(self) -> None:
        """Look once."""
        if waiting := self._room.waiting():
            self._room.wake(dict(rows(LOOK, [[*waiting.keys()], [*waiting.values()]])))
        else:
            forget_connection()


_look_outs: dict[tuple[int, Room], MailboxPoller] = {}


def look_out_for(room: Room) -> None:
    """See that there is a thread of this process that looks out for the polls in this room."""
    key = (os.getpid(), room)
    with _start_lock:
        if key not in _look_outs or not _look_outs[key].is_alive():
            _look_outs[key] = MailboxPoller(room)
            _look_outs[key].start()


class Polled(NamedTuple):
    """What a poll has got."""

    messages: list[Fetched]
    was_seated: bool = True
    """False: it did not wait as long as it was to, since there was no seat for it, or not until the end."""
    waited: float = 0.0
    """Seconds from the call to the fetch that brought something: no message was handed out before."""


def next_messages(
    box: Box,
    *,
    most: int,
    wait: float,
    departure: Departure = Future,
    may_fetch: Callable[[], bool] = lambda: True,
    room: Room = HERE,
) -> Polled:
    """Fetch `most` messages at most; where there is none, wait up to `wait` seconds for the first to come.

    Whoever waits holds no connection. A client that hangs up meanwhile gets nothing any more, for it would be lost on
    it; nor does one that may fetch no longer, which is asked before each fetch but the first.
    """
    messages = fetch(box, most=most)
    if messages or not wait:
        return Polled(messages)
    with room.seat(box.subscriber_id) as poll:
        if poll is None:
            return Polled([], was_seated=False)
        look_out_for(room)
        with _let_go_at(departure, poll):
            return _first_to_come(box, poll, most=most, wait=wait, may_fetch=may_fetch)


def _first_to_come(box: Box, poll: Poll, *, most: int, wait: float, may_fetch: Callable[[], bool]) -> Polled:
    began = time.monotonic()
    give_connection_back()
    while poll.wait(began + wait - time.monotonic()):
        waited = time.monotonic() - began
        if not may_fetch():
            break
        if messages := fetch(box, most=most):
            return Polled(messages, waited=waited)
        give_connection_back()
    return Polled([], was_seated=not poll.is_let_go)


@contextmanager
def _let_go_at(departure: Departure, poll: Poll) -> Iterator[None]:
    gone = departure()
    gone.add_done_callback(lambda _: poll.let_go())
    try:
        yield
    finally:
        gone.cancel()
