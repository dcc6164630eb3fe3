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

from broker_project.core.db import answered_within, forget_connection, give_connection_back, rows
from delivery.mailbox.available import available, in_flight
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.receipts import FetchedMessage, MailboxRef

MAX_POLLS: Final = 48
"""In a web process: beside its SYNC calls, this leaves an eighth of its threads to publishers."""
POLL_SECONDS: Final = 0.05
"""How long a message without a hint may wait to be found."""
MIN_POLL_SECONDS: Final = 0.005
"""Between two looks, however many hints there are."""
LOOK_SECONDS: Final = 4.5
"""How long a look may take, as a fetch: a connection that hangs must not keep polls from being woken for longer."""
FAILURE_SECONDS: Final = 0.5

log = structlog.get_logger(__name__)
_start_lock: Final = threading.Lock()


def max_polls(threads: int) -> int:
    """Return how many of a web process's requests may be waiting polls: 3 of 8."""
    return min(MAX_POLLS, threads * 3 // 8)


def slot_to_release(taken: Sequence[int], newcomer: int) -> int | None:
    """Return which poll gives its slot to a new one, None if none does.

    `taken` names the mailbox of each slot, in the order in which they were taken. One mailbox may have all until
    another needs one: then the newest poll of the mailbox with the most slots ends, but only for a mailbox that has
    fewer even with it. Otherwise the two would take the slot from each other again and again.
    """
    slots = Counter(taken)
    most = max(slots.values(), default=0)
    if slots[newcomer] + 1 >= most:
        return None
    return max(number for number, mailbox in enumerate(taken) if slots[mailbox] == most)


class Poll:
    """A call that waits for messages of one mailbox; only its own thread calls `wait`."""

    def __init__(self, subscriber_id: int) -> None:
        self.subscriber_id = subscriber_id
        self._wake = threading.Event()
        self._was_woken = False
        self.is_cancelled = False
        """Whether it waits no longer, before its time and without a message."""

    @property
    def is_woken(self) -> bool:
        """Whether it was woken and does not wait again yet."""
        return self.is_cancelled or self._wake.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait until woken and return whether to fetch; False after `seconds`, or once cancelled."""
        if self._was_woken:
            self._wake.clear()
        self._was_woken = not self.is_cancelled and self._wake.wait(seconds)
        return self._was_woken and not self.is_cancelled

    def wake(self) -> None:
        """Let it fetch."""
        self._wake.set()

    def cancel(self) -> None:
        """End it without another fetch."""
        self.is_cancelled = True
        self._wake.set()


class WaitingPolls:
    """The polls that wait in a process; of those for one mailbox, the first to come is woken first."""

    def __init__(self, slots: int = MAX_POLLS) -> None:
        self._slots = slots
        self._polls: list[Poll] = []
        """In the order in which they came."""
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._is_closed = False

    def set_limit(self, slots: int) -> None:
        """Change the number of slots; polls that have one keep it."""
        with self._lock:
            self._slots = slots

    @contextmanager
    def slot(self, subscriber_id: int) -> Iterator[Poll | None]:
        """Wait for messages of this subscriber's mailbox in here; None if it gets no slot."""
        poll = Poll(subscriber_id)
        if not self._add(poll):
            yield None
            return
        try:
            yield poll
        finally:
            with self._lock:
                if poll in self._polls:
                    self._polls.remove(poll)
                if not self._polls:
                    self._bell.set()

    def counts(self) -> dict[int, int]:
        """Return the number of polls by subscriber, woken ones included."""
        with self._lock:
            return Counter(poll.subscriber_id for poll in self._polls)

    def wake(self, available: Mapping[int, int]) -> None:
        """Wake a poll for each available message, by subscriber; polls woken before take one each."""
        with self._lock:
            left = Counter(available)
            left.subtract(poll.subscriber_id for poll in self._polls if poll.is_woken)
            for poll in self._polls:
                if not poll.is_woken and left[poll.subscriber_id] > 0:
                    left[poll.subscriber_id] -= 1
                    poll.wake()

    def hint(self, subscriber_ids: Iterable[int]) -> None:
        """Ring the bell if a poll waits for one of these mailboxes, which have something new."""
        if not self._polls:
            return
        with self._lock:
            waiting = {poll.subscriber_id for poll in self._polls}
        if not waiting.isdisjoint(subscriber_ids):
            self._bell.set()

    def rest(self, seconds: float) -> bool:
        """Wait for the bell, at most `seconds` while there are polls; return False once closed and empty.

        The bell rings for a hint, for the first poll that comes or the last that leaves, and on `close`.
        """
        self._bell.wait(seconds if self.counts() else None)
        self._bell.clear()
        with self._lock:
            return bool(self._polls) or not self._is_closed

    def close(self) -> None:
        """Cancel all polls, and accept no more."""
        with self._lock:
            self._is_closed = True
            for poll in self._polls:
                poll.cancel()
        self._bell.set()

    def _add(self, poll: Poll) -> bool:
        """Add a poll if there is a slot for it, or one is released for it."""
        with self._lock:
            if self._is_closed:
                return False
            if len(self._polls) >= self._slots:
                released = slot_to_release([one.subscriber_id for one in self._polls], poll.subscriber_id)
                if released is None:
                    return False
                self._polls.pop(released).cancel()
            self._polls.append(poll)
            if len(self._polls) == 1:
                self._bell.set()
            return True


WAITING: Final = WaitingPolls()
"""The polls of this process."""


def hint(subscriber_ids: Iterable[int]) -> None:
    """Wake polls of these mailboxes, which have new messages; other processes find them a little later."""
    WAITING.hint(subscriber_ids)


COUNT_AVAILABLE: Final = f"""
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
"""The number of available messages in each mailbox, up to its number of polls; 1 in an ordered one (contract 9.7)."""


class MailboxPoller(threading.Thread):
    """Looks for messages while polls wait, and wakes those that get one."""

    def __init__(self, polls: WaitingPolls) -> None:
        super().__init__(name="mailboxes", daemon=True)
        self._polls = polls

    def run(self) -> None:
        """Look until the polls are closed; hold a connection only while polls wait.

        No error ends it, not even closing a broken connection: nothing else would wake the polls.
        """
        is_broken = False
        while self._polls.rest(POLL_SECONDS):
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
            time.sleep(FAILURE_SECONDS if is_broken else MIN_POLL_SECONDS)
        forget_connection()

    def look(self) -> None:
        """Look once."""
        if counts := self._polls.counts():
            with answered_within(LOOK_SECONDS):
                available_now = rows(COUNT_AVAILABLE, [[*counts.keys()], [*counts.values()]])
            self._polls.wake(dict(available_now))
        else:
            forget_connection()


_pollers: dict[tuple[int, WaitingPolls], MailboxPoller] = {}


def start_poller(polls: WaitingPolls) -> None:
    """Make sure that a thread of this process looks for messages for these polls."""
    key = (os.getpid(), polls)
    with _start_lock:
        if key not in _pollers or not _pollers[key].is_alive():
            _pollers[key] = MailboxPoller(polls)
            _pollers[key].start()


class PollResult(NamedTuple):
    """The result of a poll."""

    messages: list[FetchedMessage]
    had_slot: bool = True
    """False if it did not wait its full time, because it got no slot or lost it."""
    waited_seconds: float = 0.0
    """From the call to the fetch that returned messages: none was fetched before."""


def wait_for_messages(
    mailbox: MailboxRef,
    *,
    max_messages: int,
    wait_seconds: float,
    watch_disconnect: Callable[[], "Future[None]"] = Future,
    may_fetch: Callable[[], bool] = lambda: True,
    polls: WaitingPolls = WAITING,
) -> PollResult:
    """Wait up to `wait_seconds` for the first message of a mailbox that had none, and fetch at most `max_messages`.

    A waiting poll holds no connection. It fetches nothing for a client that has hung up, where messages would be lost:
    then the future of `watch_disconnect` is done. Nor does it once `may_fetch` returns False, which is asked before
    every fetch.
    """
    with polls.slot(mailbox.subscriber_id) as poll:
        if poll is None:
            return PollResult([], had_slot=False)
        start_poller(polls)
        disconnected = watch_disconnect()
        disconnected.add_done_callback(lambda _: poll.cancel())
        try:
            began = time.monotonic()
            give_connection_back()
            while poll.wait(began + wait_seconds - time.monotonic()):
                waited_seconds = time.monotonic() - began
                if not may_fetch() or poll.is_cancelled:
                    break
                if messages := fetch(mailbox, max_messages=max_messages):
                    return PollResult(messages, waited_seconds=waited_seconds)
                give_connection_back()
            return PollResult([], had_slot=not poll.is_cancelled)
        finally:
            disconnected.cancel()
