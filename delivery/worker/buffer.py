"""What a line holds and shares out: its page of deliveries, its slots, and when subscriptions may be sent to.

A page is taken of what a statement has read (`page_of`), then given out one by one (`Buffer`).
"""

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice, zip_longest
from operator import attrgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from delivery.limits import (
    ASKED_SECONDS,
    DRAIN_SECONDS,
    HANGING_SECONDS,
    MAX_LINE_BYTES,
    MAX_PAGE_DELIVERIES,
    SMALL_BODY_BYTES,
    SMALL_BODY_RESERVE,
)
from delivery.webhook.destination import Destination

MIN_KEPT: Final = 1_000
"""Rate limits that are remembered before those that are over are forgotten."""


HEAD: Final = 0
"""A held delivery that is due."""
FRESH: Final = 1
DEFERRED: Final = 2


class Sized(Protocol):
    """What a line can hold."""

    @property
    def size(self) -> int:
        """Bytes of its body."""


def any_may(_delivery: object) -> bool:
    """Return True: everything may be taken."""
    return True


KEY: Final = attrgetter("ordering_key")
Work = TypeVar("Work", bound=Sized)


class Buffer(Generic[Work]):
    """A page of deliveries, or of groups; gives them out in the line's order.

    The heads, which are held and due, go first. Then those never sent, oldest first, and deferred ones that are
    due, longest due first, take turns, so that neither starves the other.
    """

    def __init__(
        self,
        *,
        heads: Iterable[Work] = (),
        fresh: Iterable[Work] = (),
        deferred: Iterable[Work] = (),
        more: bool = False,
        is_starved: bool = False,
    ) -> None:
        self.is_starved = is_starved
        """Whether there is work, but none was read: the process held too many bodies."""
        self.heads = deque(heads)
        self.next_key = ""
        """The ordering key from which on the next page is read, if the line goes by keys."""
        self.gone: Sequence[int] = ()
        """Held deliveries that were to be read and may no longer be sent."""
        self.fresh = deque(fresh)
        self._aside: dict[str, list[Work]] = {}
        """By ordering key: what was met of it while the key was busy."""
        self.deferred = deque(deferred)
        self._more = more
        self._size_at_start = len(self)
        self.refill_level = 0.0
        """The share of the page at which the next one is read."""

    def __len__(self) -> int:
        return len(self.fresh) + len(self.deferred) + len(self.heads) + sum(map(len, self._aside.values()))

    @property
    def bytes(self) -> int:
        """Bytes of the bodies that are left."""
        aside = (work for works in self._aside.values() for work in works)
        return sum(work.size for work in (*self.heads, *self.fresh, *self.deferred, *aside))

    @property
    def has_next(self) -> bool:
        """Whether there may be something to take."""
        return bool(self.heads or self.fresh or self.deferred)

    @property
    def has_more(self) -> bool:
        """Whether something is left, or there is more to read and it is time to."""
        return bool(self.heads or self.fresh or self.deferred or self._aside) or self._more

    @property
    def is_low(self) -> bool:
        """Whether there is more to read and it is time to: at most its refill level is left of the page."""
        return self._more and len(self) <= self._size_at_start * self.refill_level

    def take(self, *, deferred_next: bool, may_go: Callable[[Work], bool] = any_may) -> Work | None:
        """Take what goes next of what may; `deferred_next` says whose turn it is if both kinds wait."""
        others = (self.deferred, self.fresh) if deferred_next else (self.fresh, self.deferred)
        for part in (self.heads, *others):
            for place, work in enumerate(part):
                if may_go(work):
                    del part[place]
                    return work
        return None

    def set_aside(self, is_busy: Callable[[Work], bool]) -> None:
        """Set aside what comes next and is of a busy key, so that nobody meets it again until the key is free."""
        while self.fresh and is_busy(self.fresh[0]):
            work = self.fresh.popleft()
            self._aside.setdefault(KEY(work), []).append(work)

    def free(self, key: str) -> None:
        """Put what was set aside of a key first, in its order."""
        self.fresh.extendleft(reversed(self._aside.pop(key, [])))


class BodyBudget:
    """The bytes of bodies that the lines of one process may hold; for any number of threads."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._reserve = int(limit * SMALL_BODY_RESERVE)
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Take `size` bytes; return False, and take nothing, if there are not as many left."""
        reserve = 0 if size <= SMALL_BODY_BYTES else self._reserve
        with self._lock:
            if size > self._left - reserve:
                return False
            self._left -= size
            return True

    def give_back(self, size: int) -> None:
        """Return `size` bytes."""
        with self._lock:
            self._left += size


class Row(NamedTuple):
    """A waiting delivery as read, without its body."""

    line_id: int
    part: int
    id: int
    message_id: int
    subscription_id: int | None
    """None: the reply to a callback."""
    attempts: int
    sequence: int | None
    uncertain: bool
    times_deferred: int
    size: int
    due_at: datetime | None
    ordering_key: str
    crash_count: int
    version: int | None
    """Of its destination's configuration."""

    @property
    def deliveries(self) -> int:
        """How many it stands for: itself."""
        return 1


class GroupRow(NamedTuple):
    """A QUEUE group that is due, as read."""

    line_id: int
    part: int
    id: int
    message_id: int
    delivery_ids: list[int]
    size: int
    cycles: int
    attempts: int
    uncertain: bool
    first_id: int | None

    @property
    def deliveries(self) -> int:
        """How many it stands for."""
        return len(self.delivery_ids)


One = TypeVar("One", Row, GroupRow)


@dataclass(frozen=True, slots=True)
class KeyWalk:
    """Which ordering keys a page is read of, and how much of each."""

    start: str
    """The first of them, or the next one that has something to send."""
    keys: int
    per_key: int
    held: Sequence[str]
    """Those of which nothing is read."""
    not_deferred: Sequence[str]
    """Those of which no deferred deliveries are read."""
    last_sequence: int
    """The last number that the line has given, before those that are being marked."""


@dataclass(slots=True)
class PageRequest:
    """What to read for one line: at most `capacity` deliveries, the `heads` first that still may be sent."""

    line_id: int
    epoch: int
    capacity: int
    max_bytes: int = MAX_LINE_BYTES
    """Of bodies; one delivery is always allowed."""
    heads: Sequence[int] = ()
    """Held deliveries that are due."""
    deferred_next: bool = False
    """Whether it is the turn of the deferred ones."""
    busy: Sequence[int] = ()
    """The deliveries, or QUEUE groups, that it has taken already, and held deliveries that are not due."""
    taken: Sequence[int] = ()
    """All that it has taken, whether or not it has ended: what may be in flight, and has to be found if this ends."""
    left_out: Sequence[int] = ()
    """Subscriptions of which nothing is read."""
    is_concurrent: bool = False
    """Whether it sends several at a time."""
    walk: KeyWalk | None = None
    """How it goes by ordering keys; None: by age alone."""
    mark_as: int | None = None
    """The number under which the first is marked as IN_FLIGHT; None: none is."""
    cut_short: Sequence[int] = ()
    """QUEUE groups whose cycle ended early: they wait a moment."""
    hanging: Mapping[int, float] = field(default_factory=dict)
    """The subscriptions that keep half of its slots waiting, and for how many seconds."""


@dataclass(slots=True)
class Page(Generic[One]):
    """What a line takes."""

    taken: list[One]
    more: bool
    """Whether the line has more than it could take."""
    is_starved: bool = False
    """Whether it could take nothing, because the process holds too many bodies."""


def page_of(waiting: Sequence[One], line: PageRequest, budget: BodyBudget, paid_for: Collection[int] = ()) -> Page[One]:
    """Take from the front what fits: the line's capacity and bytes (but always one), and what `budget` has.

    Of groups as many as have 500 deliveries together (but always one). What is `paid_for` was taken from `budget`.
    """
    busy = {*line.busy}
    taken: list[One] = []
    held = deliveries = 0
    for row in islice(_in_order(waiting, line, busy), line.capacity):
        is_full = held + row.size > line.max_bytes or deliveries + row.deliveries > MAX_PAGE_DELIVERIES
        if (taken and is_full) or not (row.id in paid_for or budget.take(row.size)):
            return Page(taken, more=True, is_starved=not taken)
        taken.append(row)
        held += row.size
        deliveries += row.deliveries
    return Page(taken, more=_is_cut(waiting, line, busy))


def _in_order(waiting: Sequence[One], line: PageRequest, busy: set[int]) -> Iterator[One]:
    """Yield the heads, then new and deferred ones in turn: however short a page is cut, neither kind starves."""
    heads = [row for row in waiting if row.part == HEAD and row.id not in busy]
    first_or_busy = busy | {row.id for row in heads}
    fresh = [row for row in waiting if row.part == FRESH and row.id not in first_or_busy]
    if line.walk:
        fresh = _by_turns(fresh)
    deferred = [row for row in waiting if row.part == DEFERRED and row.id not in first_or_busy]
    yield from sorted(heads, key=lambda row: row.id)
    first, second = (deferred, fresh) if line.deferred_next else (fresh, deferred)
    for pair in zip_longest(first, second):
        yield from (row for row in pair if row)


def _by_turns(rows_by_key: Sequence[Any]) -> list[Any]:
    """Return the first of each ordering key, then the second of each, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, str, Any]] = []
    for row in sorted(rows_by_key, key=lambda row: row.id):
        turns.append((seen[row.ordering_key], row.ordering_key, row))
        seen[row.ordering_key] += 1
    return [row for *_, row in sorted(turns, key=lambda turn: turn[:2])]


def _is_cut(waiting: Sequence[Any], line: PageRequest, busy: set[int]) -> bool:
    """Return whether there may be more than was read."""
    if line.walk:
        keys = Counter(row.ordering_key for row in waiting if row.part == FRESH)
        if line.walk.start or 2 * len(keys) >= line.walk.keys or max(keys.values(), default=0) >= line.walk.per_key:
            return True
    return sum(row.id not in busy for row in waiting) >= line.capacity


@contextmanager
def charged(
    budget: BodyBudget, pages: Mapping[int, Page[One]], buffers: Mapping[int, Buffer[Work]]
) -> Iterator[Sequence[One]]:
    """Give the rows of the pages, to put them into buffers; give the bytes back of those that are in none at the end.

    Those are gone by now, or nobody can take them, or the database failed.
    """
    taken = [row for page in pages.values() for row in page.taken]
    try:
        yield taken
    finally:
        budget.give_back(sum(row.size for row in taken) - sum(buffer.bytes for buffer in buffers.values()))


@dataclass(slots=True)
class SlotShares:
    """How the slots of one line are shared among subscriptions; times are seconds since boot."""

    slots: int = 1
    avoided: set[Any] = field(default_factory=set)
    """Subscriptions, or ordering keys, of which nothing more is started in this turn."""
    _since: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """When each request in flight to a subscription was decided on, oldest first."""
    _answered_at: dict[int, float] = field(default_factory=dict)

    def join(self, subscription_id: int, now: float) -> None:
        """Note that a slot is going to wait for a subscription."""
        self._since[subscription_id].append(now)

    def leave(self, subscription_id: int, since: float, now: float, *, answered: bool) -> None:
        """Note that a slot that joined at `since` no longer waits, and whether it got an answer."""
        self._since[subscription_id].remove(since)
        if answered:
            self._answered_at[subscription_id] = now

    def place(self, subscription_id: int, of: int) -> int:
        """Return when a subscription is tried in a group of `of`: 0, first; 1, if it has its share; 2, last, if full.

        It has its share if as many slots wait for it as there are for each.
        """
        has_share = len(self._since[subscription_id]) >= max(1, self.slots // of)
        return has_share + self.is_full(subscription_id)

    def is_full(self, subscription_id: int) -> bool:
        """Whether no other slot may wait for it: half of the slots do, and none got an answer since they began."""
        if subscription_id in self.avoided:
            return True
        since = self._since[subscription_id]
        if 2 * len(since) < max(2, self.slots):
            return False
        return self._answered_at.get(subscription_id, float("-inf")) < since[0]

    def hanging(self, now: float) -> dict[int, float]:
        """Return the subscriptions that are full and hang for long, with for how long, and those that are avoided."""
        waits = {key: now - since[0] for key, since in self._since.items() if since and self.is_full(key)}
        hanging = {subscription_id: wait for subscription_id, wait in waits.items() if wait >= HANGING_SECONDS}
        return hanging | {one: max(2 * DRAIN_SECONDS, hanging.get(one, 0.0)) for one in self.avoided}


class RateLimiter:
    """By subscription, when it may be sent to next; times are seconds since boot. For one thread."""

    def __init__(self) -> None:
        self._next: dict[int, tuple[int, float]] = {}
        """With the config version that it is true for: a changed limit counts at once."""
        self._most = MIN_KEPT

    def wait(self, destination: Destination, now: float) -> float:
        """Return the seconds until it may be sent to; 0: now, or nothing is known of it."""
        if destination.spacing is None:
            return 0.0
        version, until = self._next.get(destination.subscription_id, (destination.config_version, now))
        return max(0.0, until - now) if version == destination.config_version else 0.0

    def ask(self, destination: Destination, now: float) -> None:
        """Note that the database is asked for a rate slot, so that others wait for its answer."""
        if destination.spacing is not None:
            self.learn(destination, min(destination.spacing, ASKED_SECONDS), now)

    def learn(self, destination: Destination, seconds: float, now: float) -> None:
        """Note in how many seconds it may be sent to."""
        self._next[destination.subscription_id] = destination.config_version, now + seconds
        if len(self._next) > self._most:
            self._next = {key: known for key, known in self._next.items() if known[1] > now}
            self._most = max(MIN_KEPT, 2 * len(self._next))

    def __len__(self) -> int:
        return len(self._next)
