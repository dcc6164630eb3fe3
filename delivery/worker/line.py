"""A line that a worker runs: what is written on its row, what it holds, what it has in flight."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from delivery.dispatch.claim import ActiveHold, Claim
from delivery.dispatch.notify import Link
from delivery.limits import (
    HANGS_SECONDS,
    KEYS_SECONDS,
    LEASE_MARGIN_SECONDS,
    LEASE_SECONDS,
    LONG_WAIT_SECONDS,
    MAX_OF_KEY,
    MIN_PAGE,
    PAGE_SECONDS,
    RATE_LIMITED_PAGE,
    RETRY_LINE_REST_SECONDS,
    RETRY_LINE_REST_SHARE,
    UNORDERED_REST_SECONDS,
)
from delivery.models import Lane
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, KeyWalk, PageRequest, RateLimiter, SlotShares
from delivery.worker.slots import LineUpdate, Read, Rest, Slot


@dataclass(slots=True, eq=False)
class ActiveLine:
    """A claimed line in the event loop; only the event loop's thread touches it."""

    claim: Claim
    link: Link
    """The task that it runs for."""
    renewed_at: float
    """Monotonic time, taken before the statement that renewed the lease."""
    slot_shares: SlotShares = field(default_factory=SlotShares)
    rate_limiter: RateLimiter = field(default_factory=RateLimiter)
    """Shared by all lines of the process."""
    slots: list[Slot] = field(default_factory=list)
    """One where the order counts."""

    id: int = field(init=False)
    is_retry_line: bool = field(init=False)
    """Whether it sends again what failed in the subscriber's main line (contract 5.3)."""
    is_sender: bool = field(init=False)
    """Whether it sends QUEUE groups."""
    is_ordered: bool = field(init=False)
    """Whether its order counts: then what it sends first has the next number (contract 4.10, 4.13)."""
    is_keyed: bool = field(init=False)
    """Whether its order counts within each ordering key (contract 4.18)."""

    last_sequence: int = field(init=False)
    deferred_next: bool = field(init=False)
    holds: dict[int, ActiveHold] = field(init=False)
    """By delivery: what must not be overtaken within its key."""
    changed_holds: dict[int, ActiveHold] = field(init=False, default_factory=dict)
    """Those that have to be written, or deleted, with the next settle."""
    rest: float | None = field(init=False, default=None)
    """How many seconds it rests once it is released, which it is when its requests in flight have been answered."""

    buffer: Buffer[Any] = field(init=False, default_factory=Buffer)
    """Of deliveries, or of groups in a QUEUE sender's line."""
    page_size: int = field(init=False)
    left_out: dict[int, float] = field(init=False, default_factory=dict)
    """Subscriptions that wait for their rate limit while others are sent, and until when (monotonic)."""
    tried: set[tuple[int, int]] = field(init=False, default_factory=set)
    """Half-open subscriptions, with their config version, of which one delivery has been taken in this turn."""
    cut_short: list[int] = field(init=False, default_factory=list)
    """Groups whose cycle ended because an endpoint was no longer as it was read."""
    misread: bool = field(init=False, default=False)
    """Whether what was taken when its page was asked for, and is not in it, was not sent after all."""
    unheard: PageRequest | None = field(init=False, default=None)
    """The page whose first delivery may be marked and is not sent: nobody answered, or its configuration changed."""
    has_read: bool = field(init=False, default=False)
    """Whether a page has been read in this turn, and all that was taken of it was sent."""
    read_at: float = field(init=False, default=0.0)
    """Monotonic time at which its last page was read."""
    next_key: str = field(init=False, default="")
    """The ordering key from which on the next page is read."""
    numbers: dict[int, int] = field(init=False, default_factory=dict)
    """By delivery: the numbers of what is being marked, where others are marked beside it."""
    last_marked: int = field(init=False, default=0)
    """The last of them when they were marked: nothing has a later one."""
    busy_keys: dict[str, Slot] = field(init=False, default_factory=dict)
    """The ordering keys of what slots have taken, until its outcome is recorded."""
    keys_in_the_way: set[str] = field(init=False, default_factory=set)
    """Busy ordering keys whose deferred deliveries were left over of the last pages: they do not fill the next one."""
    shortest_pause: float = field(init=False, default=math.inf)
    """The shortest pause of what it has sent in this turn, in seconds."""

    taken_at: float = field(init=False, default_factory=time.monotonic)
    sent: int = field(init=False, default=0)
    """Requests in this turn."""
    has_hint: bool = field(init=False, default=False)
    """Whether a publisher has told of new work since its last page was read."""
    stopping: bool = field(init=False, default=False)
    """Whether it starts nothing more, since its worker stops, or its lease has ended during a request."""
    is_over: bool = field(init=False, default=False)
    """Whether its turn is over, or it had nothing to send for a while."""
    is_outdated: bool = field(init=False, default=False)
    """Whether it has to be claimed again: its subscriber's concurrency has changed (contract 4.13)."""

    def __post_init__(self) -> None:
        claim = self.claim
        self.id = claim.line_id
        self.is_retry_line, self.is_sender = claim.lane == Lane.RETRY, claim.lane == Lane.QUEUE
        self.is_ordered = claim.lane == Lane.MAIN and claim.concurrency == 1
        self.is_keyed = claim.is_keyed
        self.last_sequence, self.deferred_next = claim.last_sequence, claim.deferred_next
        self.holds = {hold.delivery_id: hold for hold in claim.holds}
        waited_for_rate = self.is_ordered and any(not hold.failures for hold in claim.holds)
        page = RATE_LIMITED_PAGE if waited_for_rate else max(MIN_PAGE, 2 * claim.concurrency)
        self.page_size = min(page, claim.capacity)

    @property
    def lease_ends_at(self) -> float:
        """Monotonic time by which nothing may be in flight any more, unless the lease is renewed."""
        return self.renewed_at + LEASE_SECONDS - LEASE_MARGIN_SECONDS

    @property
    def is_waiting(self) -> bool:
        """Whether a slot waits for an answer or a script."""
        return any(slot.waiting_since is not None for slot in self.slots)

    def hangs(self, now: float) -> bool:
        """Whether a slot has waited for long."""
        return any(slot.has_waited(now, HANGS_SECONDS) for slot in self.slots)

    @property
    def has_more(self) -> bool:
        """Whether it has been read that it has more to send."""
        return len(self.buffer) > 0 or self.buffer.is_low

    @property
    def is_read_out(self) -> bool:
        """Whether a page has shown all there was, and all of it has been taken; or just now, what keys are free."""
        if self.is_keyed and self.has_read and time.monotonic() < self.read_at + KEYS_SECONDS:
            return True
        return self.has_read and not self.has_more

    def must_stop(self) -> bool:
        """Whether it takes nothing more; if one of several slots hangs, or waits for a rate, the others go on."""
        if self.stopping or self.rest is not None or self.is_outdated:
            return True
        if not self.is_over or self.hangs(time.monotonic()):
            return False
        return not any(slot.paced_for is not None for slot in self.slots)

    def has_time_for(self, seconds: float) -> bool:
        """Whether a slot may wait for a rate limit, unless its turn is over and others may wait for it."""
        return seconds <= LONG_WAIT_SECONDS and (len(self.slots) == 1 or not self.is_over)

    def failures_of(self, delivery: Outgoing) -> int:
        """Return how often in a row `delivery` has failed, and was held for it."""
        hold = self.holds.get(delivery.id)
        return hold.failures if hold else 0

    def hold(self, delivery: Outgoing, pause: float, reason: str = "") -> None:
        """Let nothing of its key overtake `delivery`, which is tried again after a pause (contract 4.7, 4.8, 4.12).

        Without a reason it has not failed, but waits for its rate limit.
        """
        if delivery.id not in self.holds:
            self.deferred_next = not delivery.is_deferred
        self.holds[delivery.id] = self.changed_holds[delivery.id] = ActiveHold(
            self.id,
            delivery.id,
            delivery.ordering_key,
            self.failures_of(delivery) + bool(reason),
            pause,
            time.monotonic() + pause,
            reason,
            delivery.destination.config_version,
        )

    def passed(self, delivery: Outgoing) -> None:
        """Note that `delivery` holds nothing up, and whose turn it is: new or deferred ones (contract 4.6)."""
        if delivery.id not in self.holds:
            self.deferred_next = not delivery.is_deferred
        self.unhold(delivery.id)

    def unhold(self, delivery_id: int) -> None:
        """Let others overtake the delivery."""
        if hold := self.holds.pop(delivery_id, None):
            self.changed_holds[delivery_id] = replace(hold, pause=None)

    def resting_holds(self, now: float) -> list[int]:
        """Return the deliveries that are held and not due."""
        return [hold.delivery_id for hold in self.holds.values() if hold.until > now]

    def due_holds(self, now: float) -> list[int]:
        """Return the held deliveries that are sent next, oldest first: they are due, and no slot has taken them."""
        if not self.holds:
            return []
        taken = {*self.taken_ids}
        due = (hold.delivery_id for hold in self.holds.values() if hold.until <= now)
        return sorted(delivery_id for delivery_id in due if delivery_id not in taken)

    @property
    def taken_ids(self) -> list[int]:
        """The deliveries, or QUEUE groups, that slots have taken; those of one that reads next are settled first."""
        return [taken_id for slot in self.slots if not isinstance(slot.step, Read) for taken_id in slot.taken_ids]

    def reads(self, step: Read) -> bool:
        """Whether a page is read at once, and not when there is new work."""
        return not step.linger or self.has_hint or self.must_stop()

    def lacks_heads(self) -> bool:
        """Whether something held has become due that has not been read."""
        return not {*self.due_holds(time.monotonic())} <= {delivery.id for delivery in self.buffer.heads}

    def has_room(self, slot: Slot) -> bool:
        """Whether `slot` may send something, as a held delivery takes up the place of one in flight."""
        if not self.holds:
            return True
        others = sum(not isinstance(other.step, Rest) for other in self.slots if other is not slot)
        return others + len(self.resting_holds(time.monotonic())) < self.claim.concurrency

    def chooser(self, slot: Slot, may_go: Callable[[Outgoing], bool]) -> Callable[[Outgoing], bool]:
        """Return what tells whether `slot` may send a delivery: `may_go`, and nothing of its key goes before it.

        It is asked for the deliveries of a key in their order: after one that may not go, none of that key may.
        """
        if not self.is_keyed:
            return may_go
        held: dict[str, int] = {}
        for hold in sorted(self.holds.values(), key=lambda hold: hold.delivery_id):
            held.setdefault(hold.ordering_key, hold.delivery_id)
        passed_over: set[str] = set()

        def may(delivery: Outgoing) -> bool:
            key = delivery.ordering_key
            if key in passed_over or held.get(key, delivery.id) != delivery.id:
                return False
            if self.busy_keys.get(key, slot) is slot and may_go(delivery):
                return True
            passed_over.add(key)
            return False

        return may

    def may_try(self, delivery: Outgoing) -> bool:
        """Whether it may be sent beside the requests in flight: a half-open subscription has one (contract 5.6)."""
        to = delivery.destination
        return self.claim.concurrency == 1 or (to.subscription_id, to.config_version) not in self.tried

    def leave_out(self, delivery: Outgoing, until: float) -> None:
        """Read nothing of its subscription until then: no slot waits for it, and it has not been tried."""
        to = delivery.destination
        self.left_out[to.subscription_id] = until
        self.tried.discard((to.subscription_id, to.config_version))

    def next_number(self, delivery: Outgoing) -> int | None:
        """Return the number that `delivery` gets unless it has one: the line's next, or the one that it was given."""
        return self.last_sequence + 1 if self.is_ordered else self.numbers.get(delivery.id)

    def give_number(self, delivery: Outgoing) -> None:
        """Give `delivery` a number, if others may be marked beside it and it has none."""
        if delivery.sequence is None and delivery.id not in self.numbers:
            self.last_sequence += 1
            self.numbers[delivery.id] = self.last_sequence
        self.last_marked = self.last_sequence

    def page_request(self) -> PageRequest:
        """Return what is read for the line next; of one slot's line, which will send it, the first is marked too."""
        now = time.monotonic()
        marks = self.is_ordered and not self.must_stop() and self.has_room(self.slots[0])
        self.left_out = {subscription_id: until for subscription_id, until in self.left_out.items() if until > now}
        self.misread = False
        return PageRequest(
            line_id=self.id,
            epoch=self.claim.epoch,
            heads=self.due_holds(now),
            capacity=self.page_size,
            deferred_next=self.deferred_next,
            busy=self.taken_ids + self.resting_holds(now),
            left_out=[*self.left_out],
            is_concurrent=self.claim.concurrency > 1,
            walk=self._walk(now) if self.is_keyed else None,
            mark_as=self.last_sequence + 1 if marks else None,
            cut_short=self.cut_short,
            hanging=self.slot_shares.hanging(now),
        )

    def was_refused(self, delivery: Outgoing) -> None:
        """Note that `delivery` may not be sent as it was read; its number is given again if none is later."""
        self.has_read, self.misread = False, True
        number = self.numbers.pop(delivery.id, None)
        if number and number == self.last_marked:
            self.last_sequence -= 1

    def _walk(self, now: float) -> KeyWalk:
        keys = 2 * self.claim.concurrency
        per_key = max(1, min(self.page_size // keys, MAX_OF_KEY))
        held = [hold.ordering_key for hold in self.holds.values() if hold.until > now]
        last_used = min(self.numbers.values(), default=self.last_sequence + 1) - 1
        return KeyWalk(self.next_key, keys, per_key, held, [*self.keys_in_the_way.union(held)], last_used)

    def receive(self, buffer: Buffer[Any]) -> None:
        """Take a new page; a held delivery that may no longer be sent holds nothing up."""
        self.buffer, self.cut_short, self.has_read, self.has_hint = buffer, [], True, False
        if buffer.is_starved:
            self.page_size = self.claim.capacity  # perhaps only the first of what waits cannot be had
        self.next_key, self.read_at = buffer.next_key, time.monotonic()
        for delivery_id in buffer.gone:
            self.unhold(delivery_id)

    def size_page(self) -> None:
        """Choose how much is read next, by what was sent so far."""
        will_send = self.sent / (time.monotonic() - self.taken_at) * PAGE_SECONDS
        at_least = max(MIN_PAGE, 2 * len(self.slots))
        self.page_size = min(max(at_least, int(will_send)), self.claim.capacity)

    def rest_at_release(self) -> float | None:
        """Return how many seconds it rests if it is released now, None if it does not.

        Where all that is left waits long for a rate limit, or for its next try, it rests a little.
        """
        if self.rest is not None or len(self.buffer) or self.buffer.is_low:
            return self.rest
        longest = RETRY_LINE_REST_SECONDS if self.is_retry_line else UNORDERED_REST_SECONDS
        if self.left_out:
            wait = min(self.left_out.values()) - time.monotonic()
            return min(wait, longest) if wait > LONG_WAIT_SECONDS else None
        if self.is_retry_line and self.shortest_pause < math.inf:
            return min(self.shortest_pause * RETRY_LINE_REST_SHARE, longest)
        return None

    def update(self) -> LineUpdate:
        """Return what is written on the line's row when it is released."""
        return LineUpdate(
            line_id=self.id,
            last_sequence=self.last_sequence,
            deferred_next=self.deferred_next,
            pause=self.rest_at_release(),
        )

    def return_buffer(self, budget: BodyBudget) -> None:
        """Drop what has been read and not taken; it is read again when its turn comes."""
        budget.give_back(self.buffer.bytes)
        if self.is_keyed:
            left = {one.ordering_key for one in self.buffer.deferred} & self.busy_keys.keys()
            self.keys_in_the_way = self.keys_in_the_way | left if left else set()
        self.buffer = Buffer(more=len(self.buffer) > 0 or self.buffer.is_low)

    def return_all(self, budget: BodyBudget) -> None:
        """Drop everything."""
        self.return_buffer(budget)
        for slot in self.slots:
            slot.give_back(budget)
