"""How many of a publisher's messages have deliveries that have not ended: kept in mind for those who have a limit.

To count them for each publish would cost as much as there are. So a process keeps the ids of a publisher's open
messages, adds what it stores itself, and about once a second asks what others have stored and which have ended.
"""

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Final

from broker_project.core.db import rows

LOOKED_AT_FOR_SECONDS: Final = 1.0
SHARE: Final = 10
"""Where looking takes long it is done more rarely: at most this part of the time goes into it."""
REMEMBERED_FOR_SECONDS: Final = 3600.0
"""Afterwards so much may have happened that it is cheaper to begin anew."""

ALL: Final = """
SELECT o.message_id FROM (SELECT DISTINCT message_id FROM delivery_open) o
 WHERE EXISTS (SELECT FROM delivery_message m
                WHERE m.id = o.message_id AND m.publisher_id = %(publisher)s AND m.answers IS NULL)
 LIMIT %(most)s
"""
"""As many as there are, but no more than is asked for; replies to callbacks are nobody's own doing."""
NEWEST: Final = "SELECT coalesce(max(id), 0) FROM delivery_message WHERE publisher_id = %(publisher)s"
STILL: Final = """
SELECT c.id, EXISTS (SELECT FROM delivery_open d WHERE d.message_id = c.id)
  FROM (SELECT unnest(%(known)s::bigint[]) AS id
        UNION
        SELECT m.id FROM delivery_message m
         WHERE m.publisher_id = %(publisher)s AND m.id > %(since)s AND m.answers IS NULL) c
"""


class TooManyOpenMessages(Exception):
    """So many of the publisher's messages have unfinished deliveries that it may publish no more."""

    def __init__(self, limit: int, present: int) -> None:
        super().__init__(f"{present} messages of this publisher have unfinished deliveries, of {limit} that may.")
        self.limit = limit
        self.present = present


class MoreThanMayBeOpen(Exception):
    """A batch has more events with deliveries than the publisher may have open: there will never be room for it."""

    def __init__(self, limit: int, number: int) -> None:
        super().__init__(
            f"{number} of these events have deliveries, and of this publisher's {limit} may be unfinished at a time:"
            " send them in smaller batches."
        )


class OpenMessages:
    """Those of one publisher, as far as this process knows; of all threads."""

    def __init__(self, publisher_id: int) -> None:
        self._publisher_id = publisher_id
        self._ids: set[int] = set()
        self._in_flight = 0
        self._is_complete = False
        """Whether these are all: where there were more than the limit, the others are not known."""
        self._newest = self._newest_before = 0
        """What there was when they were looked at last, and the time before: meanwhile what was stored earlier can
        have become visible later."""
        self._looked_at = float("-inf")
        self._look_again_at = float("-inf")
        self._looking = Lock()
        self._lock = Lock()

    @contextmanager
    def room_for(self, number: int, limit: int) -> Iterator[set[int]]:
        """Yield a set for the ids of so many messages that are about to be stored, those with deliveries.

        Raises:
            MoreThanMayBeOpen: they alone are more than `limit`.
            TooManyOpenMessages: with them there would be more than `limit`.

        """
        if number > limit:
            raise MoreThanMayBeOpen(limit, number)
        self._look(limit)
        with self._lock:
            present = len(self._ids) + self._in_flight
            if number and present + number > limit:
                raise TooManyOpenMessages(limit, present)
            self._in_flight += number
        stored: set[int] = set()
        try:
            yield stored
        finally:
            with self._lock:
                self._in_flight -= number
                self._ids |= stored

    def _look(self, limit: int) -> None:
        """Bring up to date what is known, if that is old; one thread does, the others go by what is known."""
        is_known = time.monotonic() - self._looked_at < REMEMBERED_FOR_SECONDS
        if not self._looking.acquire(blocking=not is_known):
            return
        try:
            if time.monotonic() >= self._look_again_at:
                began = time.monotonic()
                self._ask(limit, is_known=began - self._looked_at < REMEMBERED_FOR_SECONDS)
                self._looked_at = time.monotonic()
                self._look_again_at = self._looked_at + max(LOOKED_AT_FOR_SECONDS, SHARE * (self._looked_at - began))
        finally:
            self._looking.release()

    def _ask(self, limit: int, *, is_known: bool) -> None:
        if is_known and self._is_complete:
            self._ask_for_changes()
            return
        ((newest,),) = rows(NEWEST, {"publisher": self._publisher_id})
        found = rows(ALL, {"publisher": self._publisher_id, "most": limit + 1})
        self._newest = self._newest_before = newest
        self._is_complete = len(found) <= limit
        self._replace(self._ids.copy(), {message_id for (message_id,) in found})

    def _ask_for_changes(self) -> None:
        known = self._ids.copy()
        found = rows(STILL, {"publisher": self._publisher_id, "known": [*known], "since": self._newest_before})
        newest = max((message_id for message_id, _ in found), default=0)
        self._newest_before, self._newest = self._newest, max(self._newest, newest)
        self._replace(known, {message_id for message_id, is_open in found if is_open})

    def _replace(self, known: Collection[int], found: set[int]) -> None:
        """Keep what was found, and what other threads have added meanwhile."""
        with self._lock:
            self._ids = found | self._ids.difference(known)


_publishers: dict[int, OpenMessages] = {}


@contextmanager
def room_for(number: int, *, publisher_id: int | None, limit: int | None) -> Iterator[set[int]]:
    """Yield a set for the ids of messages about to be stored, of which a publisher may have so many open.

    Raises:
        TooManyOpenMessages: with them there would be more.

    """
    if publisher_id is None or limit is None:
        yield set()
        return
    with _publishers.setdefault(publisher_id, OpenMessages(publisher_id)).room_for(number, limit) as stored:
        yield stored


def forget() -> None:
    """Ask anew for everybody."""
    _publishers.clear()
