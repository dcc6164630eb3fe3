"""Limit how many of a publisher's messages may have unfinished deliveries.

Counting them for each publish would cost as much as there are. So a process keeps the ids of a publisher's open
messages, adds those that it stores itself, and about once a second asks what others stored and what has ended.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from django.db import Error

from broker_project.core.db import is_away, rows

REFRESH_SECONDS: Final = 1.0
REFRESH_PART: Final = 10
"""A slow refresh is done less often: at most one tenth of the time is spent on it."""
KNOWN_SECONDS: Final = 3600.0
"""After this time without a refresh, counting again is cheaper than asking for the changes."""

ALL: Final = """
SELECT o.message_id FROM (SELECT DISTINCT message_id FROM delivery_open) o
 WHERE EXISTS (SELECT FROM delivery_message m
                WHERE m.id = o.message_id AND m.publisher_id = %(publisher)s AND m.answers IS NULL)
 LIMIT %(limit)s
"""
"""Replies to callbacks do not count: the publisher did not publish them."""
NEWEST: Final = "SELECT coalesce(max(id), 0) FROM delivery_message WHERE publisher_id = %(publisher)s"
STILL: Final = """
SELECT c.id, EXISTS (SELECT FROM delivery_open d WHERE d.message_id = c.id)
  FROM (SELECT unnest(%(known)s::bigint[]) AS id
        UNION
        SELECT m.id FROM delivery_message m
         WHERE m.publisher_id = %(publisher)s AND m.id > %(since)s AND m.answers IS NULL) c
"""
RUNNING: Final = """
SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint FROM pg_current_snapshot() AS s
"""
"""The oldest transaction that is running, and the next one that will begin."""


class TooManyOpenMessages(Exception):
    """With the new messages, more of the publisher's messages would have unfinished deliveries than it may have."""

    def __init__(self, limit: int, present: int) -> None:
        super().__init__(f"{present} messages of this publisher have unfinished deliveries, of {limit} that may.")
        self.limit = limit
        self.present = present


class MoreThanMayBeOpen(Exception):
    """A batch alone has more events with deliveries than the publisher may have open: retrying is pointless."""

    def __init__(self, limit: int, number: int) -> None:
        super().__init__(
            f"{number} of these events have deliveries, and of this publisher's {limit} may be unfinished at a time:"
            " send them in smaller batches."
        )


@dataclass(slots=True, eq=False)
class _Reservation:
    """The place of messages whose transaction is under way."""

    number: int
    ids: set[int] = field(default_factory=set)
    """Of these messages; empty until they are stored."""


class OpenMessages:
    """The open messages of one publisher, as far as this process knows; for any number of threads."""

    def __init__(self, publisher_id: int) -> None:
        self._publisher_id = publisher_id
        self._ids: set[int] = set()
        self._reservations: set[_Reservation] = set()
        self._is_complete = False
        """Whether all ids are known; where there were more than the limit, the others are not."""
        self._settled: int | None = None
        """No transaction is running that stores an older message than this one. None: all have to be counted."""
        self._newest: int | None = None
        """The newest message at the last refresh. Older ones become visible later, when their transactions commit."""
        self._next: tuple[int | None, int] = None, 0
        """What is settled next, and when: once all transactions before this one have ended. Those that store an older
        message have begun by the refresh after the one at which it was the newest."""
        self._refreshed_at = self._refresh_again_at = self._failed_at = float("-inf")
        self._failure: Error | None = None
        """Why the last look failed, if it did."""
        self._refreshing = Lock()
        self._lock = Lock()

    @contextmanager
    def room_for(self, number: int, limit: int) -> Iterator[set[int]]:
        """Yield a set for the ids of `number` messages that are about to be stored with deliveries, after `refresh`.

        The context ends after their transaction.

        Raises:
            MoreThanMayBeOpen: they alone are more than `limit`.
            TooManyOpenMessages: with them there would be more than `limit`.
        """
        if number > limit:
            raise MoreThanMayBeOpen(limit, number)
        reservation = _Reservation(number)
        with self._lock:
            present = len(self._ids) + sum(one.number for one in self._reservations)
            if number and present + number > limit:
                raise TooManyOpenMessages(limit, present)
            self._reservations.add(reservation)
        try:
            yield reservation.ids
        except Exception as failure:
            if not is_away(failure):  # else they may have been committed
                reservation.ids.clear()
            raise
        finally:
            with self._lock:
                self._reservations.remove(reservation)
                self._ids |= reservation.ids

    def refresh(self, limit: int) -> None:
        """Ask the database if it is time to; one thread does, the others use what is known, if anything is.

        If nothing is known, those that wait for a look that fails get its failure, and do not look in turn.
        """
        asked = time.monotonic()
        if not self._refreshing.acquire(blocking=not self._is_known()):
            return
        try:
            if not self._is_known() and self._failure and asked <= self._failed_at:
                raise self._failure
            if not self._is_known() or time.monotonic() >= self._refresh_again_at:
                self._look(limit)
        finally:
            self._refreshing.release()

    def _is_known(self) -> bool:
        return time.monotonic() - self._refreshed_at < KNOWN_SECONDS

    def _look(self, limit: int) -> None:
        began, before, self._failure = time.monotonic(), self._ids.copy(), None
        if not self._is_known():
            self._settled, self._newest, self._next = None, None, (None, 0)
        try:
            ((oldest, following),) = rows(RUNNING)
            if self._is_complete and self._settled is not None:
                found, newest = self._changed(before, self._settled)
            else:
                found, newest = self._all(limit)
            if oldest >= self._next[1]:
                self._settled, self._next = self._next[0], (self._newest, following)
            self._newest = newest
            with self._lock:  # other threads may have added some meanwhile, or committed what has its place still
                stored = found.difference(*(one.ids for one in self._reservations))
                self._ids = stored | self._ids.difference(before)
            self._refreshed_at = time.monotonic()
        except Error as failure:
            self._failure, self._failed_at = failure, time.monotonic()
            raise
        finally:
            ended = time.monotonic()
            self._refresh_again_at = ended + max(REFRESH_SECONDS, REFRESH_PART * (ended - began))

    def _all(self, limit: int) -> tuple[set[int], int]:
        """Return all open messages, up to one more than `limit`, and the newest message."""
        ((newest,),) = rows(NEWEST, {"publisher": self._publisher_id})
        found = rows(ALL, {"publisher": self._publisher_id, "limit": limit + 1})
        self._is_complete = len(found) <= limit
        return {message_id for (message_id,) in found}, newest

    def _changed(self, known: set[int], settled: int) -> tuple[set[int], int]:
        """Return which of the known messages, and of those after `settled`, are open, and the newest of all."""
        found = rows(STILL, {"publisher": self._publisher_id, "known": [*known], "since": settled})
        newest = max((message_id for message_id, _ in found), default=settled)
        return {message_id for message_id, is_open in found if is_open}, newest


_publishers: dict[int, OpenMessages] = {}


def refresh_open(publisher_id: int | None, limit: int | None) -> None:
    """Do `OpenMessages.refresh` of a publisher that has a limit."""
    if publisher_id is not None and limit is not None:
        _publishers.setdefault(publisher_id, OpenMessages(publisher_id)).refresh(limit)


def room_for(number: int, *, publisher_id: int | None, limit: int | None) -> AbstractContextManager[set[int]]:
    """Return `OpenMessages.room_for` of a publisher; without a publisher or a limit there is always room."""
    if publisher_id is None or limit is None:
        return nullcontext(set())
    return _publishers.setdefault(publisher_id, OpenMessages(publisher_id)).room_for(number, limit)
