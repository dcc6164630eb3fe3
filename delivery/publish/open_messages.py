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
        self._newest = self._newest_before = 0
        """The newest message at the last refresh and at the one before: a commit can become visible late."""
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
        try:
            found = self._changed(before) if self._is_complete and self._is_known() else self._all(limit)
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

    def _all(self, limit: int) -> set[int]:
        ((newest,),) = rows(NEWEST, {"publisher": self._publisher_id})
        found = rows(ALL, {"publisher": self._publisher_id, "limit": limit + 1})
        self._newest = self._newest_before = newest
        self._is_complete = len(found) <= limit
        return {message_id for (message_id,) in found}

    def _changed(self, known: set[int]) -> set[int]:
        found = rows(STILL, {"publisher": self._publisher_id, "known": [*known], "since": self._newest_before})
        newest = max((message_id for message_id, _ in found), default=0)
        self._newest_before, self._newest = self._newest, max(self._newest, newest)
        return {message_id for message_id, is_open in found if is_open}


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
