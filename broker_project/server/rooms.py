"""Room for large bodies in the memory of a web process: most of it for whoever has a key, none of it for one alone."""

from collections import Counter
from collections.abc import Hashable
from threading import Lock
from typing import Final

from django.conf import settings

from broker_project.core.rate_limit import welcomed

STRANGERS_PART: Final = 8
"""One part of so many is for those who have shown no key lately, though at least one body as large as any may be."""
NOBODY_KNOWN: Final = None


class Room:
    """How many bytes of bodies are held at a time, and how many of them for one.

    Taken by the server's loop, given back by whichever thread answers.
    """

    def __init__(self, most: int, most_each: int) -> None:
        self._lock = Lock()
        self._left = most
        self._most_each = most_each
        self._taken: Counter[Hashable] = Counter()

    def take(self, size: int, who: Hashable) -> bool:
        """Take so much, unless there is not so much left, or not for them."""
        with self._lock:
            if size > min(self._left, self._most_each - self._taken[who]):
                return False
            self._left -= size
            self._taken[who] += size
            return True

    def give_back(self, size: int, who: Hashable) -> None:
        """Give back what was taken."""
        with self._lock:
            self._left += size
            self._taken[who] -= size
            if not self._taken[who]:
                del self._taken[who]


class Claim:
    """What one body has of a room: taken as it arrives, given back once it is refused or answered."""

    def __init__(self, room: Room, who: Hashable) -> None:
        self._room = room
        self._who = who
        self._taken = 0

    def take(self, size: int) -> bool:
        """Take so much more, if there is room for it."""
        is_taken = self._room.take(size, self._who)
        self._taken += size * is_taken
        return is_taken

    def release(self) -> None:
        """Give back all of it, if that has not been done."""
        taken, self._taken = self._taken, 0
        if taken:
            self._room.give_back(taken, self._who)


class Rooms:
    """Those of one process: who is a stranger cannot take what is for the others, nor they what is for strangers."""

    def __init__(self, most: int) -> None:
        for_strangers = max(settings.MAX_BATCH_BYTES, most // STRANGERS_PART)
        self._strangers = Room(for_strangers, for_strangers)
        self._known = Room(most - for_strangers, (most - for_strangers) // 2)

    def claim(self, authorization: str) -> Claim:
        """Return what a body may take whose request has this `Authorization`."""
        who = welcomed(authorization)
        return Claim(self._strangers, NOBODY_KNOWN) if who is None else Claim(self._known, who)
