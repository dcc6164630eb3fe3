"""A line that a worker runs: what is written on its row, what it holds, what it has in flight."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_project.core import boot_clock
from delivery.dispatch.claim import Claim
from delivery.dispatch.notify import Link
from delivery.limits import (
    DRAIN_SECONDS,
    EXPIRED_SECONDS,
    HANGS_SECONDS,
    KEYS_SECONDS,
    LEASE_MARGIN_SECONDS,
    LEASE_SECONDS,
    LONG_TURN_SECONDS,
    LONG_WAIT_SECONDS,
    LONGEST_TURN_SECONDS,
    MAX_OF_KEY,
    MIN_PAGE,
    RATE_LIMITED_PAGE,
    RETRY_LINE_REST_SECONDS,
    RETRY_LINE_REST_SHARE,
    UNORDERED_REST_SECONDS,
)
from delivery.models import Lane
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, KeyWalk, PageRequest, RateLimiter, SlotShares
from delivery.worker.isolation import Isolation
from delivery.worker.order import AFTER, Holds, Numbers
from delivery.worker.slots import LineUpdate, NotStarted, Read, Rest, Send, Slot, SlotState


@dataclass(slots=True, eq=False)
class ActiveLine:
    """A claimed line in the event loop; only the event loop's thread touches it."""

    claim: Claim
    link: Link
    """The task that it runs for."""
    renewed_at: float
    """Time since boot, taken before the statement that renewed the lease."""
    slot_shares: SlotShares = field(default_factory=SlotShares)
    rate_limiter: RateLimiter = field(default_factory=RateLimiter)
    """Shared by all lines of the process."""
    isolation: Isolation = field(default_factory=Isolation)
    """Also shared by all."""
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

    numbers: Numbers = field(init=False)
    deferred_next: bool = field(init=False)
    holds: Holds = field(init=False)
    rest: float | None = field(init=False, default=None)
    """How many seconds it rests once it is released, which it is when its requests in flight have been answered."""

    buffer: Buffer[Any] = field(init=False, default_factory=Buffer)
    """Of deliveries, or of groups in a QUEUE sender's line."""
    page_size: int = field(init=False)
    left_out: dict[int, float] = field(init=False, default_factory=dict)
    """Subscriptions that wait for their rate limit while others are sent, and until when (time since boot)."""
    has_probes: bool = field(init=False, default=False)
    """Whether something of a half-open subscription has been taken in this turn."""
    probed: set[int] = field(init=False, default_factory=set)
    """Half-open subscriptions that were being tried when its last page was asked for."""
    cut_short: list[int] = field(init=False, default_factory=list)
    """Groups whose cycle ended because an endpoint was no longer as it was read."""
    misread: bool = field(init=False, default=False)
    """Whether what was taken when its page was asked for, and is not in it, was not sent after all."""
    unheard: PageRequest | None = field(init=False, default=None)
    """The page whose first delivery may be marked and is not sent: nobody answered, or its configuration changed."""
    has_read: bool = field(init=False, default=False)
    """Whether a page has been read in this turn, and all that was taken of it was sent."""
    read_at: float = field(init=False, default=0.0)
    """Time since boot at which its last page was read."""
    next_key: str = field(init=False, default="")
    """The ordering key from which on the next page is read."""
    last_key: str | None = field(init=False, default=None)
    """The greatest ordering key of which something new has been taken of its page."""
    busy_keys: dict[str, Slot] = field(init=False, default_factory=dict)
    """The ordering keys of what slots have taken, until its outcome is recorded."""
    keys_in_the_way: set[str] = field(init=False, default_factory=set)
    """Busy ordering keys whose deferred deliveries were left over of the last pages: they do not fill the next one."""
    shortest_pause: float = field(init=False, default=math.inf)
    """The shortest pause of what it has sent in this turn, in seconds."""

    taken_at: float = field(init=False, default_factory=lambda: boot_clock.since_boot())  # noqa: PLW0108 - tests replace it
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
        self.numbers, self.deferred_next = Numbers(claim.last_sequence, self.is_ordered), claim.deferred_next
        self.holds = Holds(claim)
        waited_for_rate = self.is_ordered and any(not hold.failures for hold in claim.holds)
        page = RATE_LIMITED_PAGE if waited_for_rate else max(MIN_PAGE, 2 * claim.concurrency)
        self.page_size = min(page, claim.capacity)

    @property
    def lease_ends_at(self) -> float:
        """Time since boot by which nothing may be in flight any more, unless the lease is renewed."""
        return self.renewed_at + LEASE_SECONDS - LEASE_MARGIN_SECONDS

    @property
    def is_waiting(self) -> bool:
        """Whether a slot waits for an answer or a script."""
        return any(slot.waiting_since is not None for slot in self.slots)

    @property
    def is_idle(self) -> bool:
        """Whether a slot waits for new work, and nothing is held; for any thread."""
        return not self.holds and any(slot.state is SlotState.IDLE for slot in self.slots)

    def hangs(self, now: float) -> bool:
        """Whether a slot has waited for long: so long that the others do not wait with it."""
        seconds = HANGS_SECONDS if now < self.taken_at + LONG_TURN_SECONDS else DRAIN_SECONDS
        return any(slot.has_waited(now, seconds) for slot in self.slots)

    def is_overdue(self, now: float) -> bool:
        """Whether it starts nothing more, even if the other slots have to wait for a request that hangs."""
        return now >= self.taken_at + LONGEST_TURN_SECONDS

    @property
    def is_read_out(self) -> bool:
        """Whether a page has shown all there was, and all of it has been taken; or just now, what keys are free."""
        if self.is_keyed and self.has_read and boot_clock.since_boot() < self.read_at + KEYS_SECONDS:
            return True
        return self.has_read and not self.buffer.has_more

    def must_stop(self) -> bool:
        """Whether it takes nothing more; if one of several slots hangs, or waits for a rate, the others go on."""
        if self.stopping or self.rest is not None or self.is_outdated:
            return True
        if not self.is_over:
            return False
        now = boot_clock.since_boot()
        if self.is_overdue(now):
            return True
        return not (self.hangs(now) or any(slot.paced_for is not None for slot in self.slots))

    def avoid_what_hangs(self) -> None:
        """Let slots start nothing more in this turn of what hangs, if its turn has been over for long."""
        if not self.is_over or (now := boot_clock.since_boot()) < self.taken_at + LONG_TURN_SECONDS:
            return
        for slot in self.slots:
            if slot.in_flight and slot.has_waited(now, DRAIN_SECONDS):
                self.slot_shares.avoided.add(self._share_of(slot.in_flight))

    def _share_of(self, delivery: Outgoing) -> int | str:
        """Return what hangs if this delivery does: its ordering key, otherwise its subscription."""
        return delivery.ordering_key if self.is_keyed else delivery.destination.subscription_id

    def hold(self, delivery: Outgoing, pause: float, reason: str = "") -> None:
        """Let nothing of its key overtake `delivery`, which is tried again after a pause.

        Without a reason it has not failed, but waits for its rate limit.
        """
        if delivery.id not in self.holds:
            self.deferred_next = not delivery.is_deferred
        self.holds.add(delivery, pause, reason)

    def refused(self, slot: Slot, budget: BodyBudget) -> NotStarted:
        """Return what tells a slot that what it was to send may not be sent: its page is read again.

        Nothing else comes in the line of a reply. That has expired, and waits until the clock is believed.
        """
        assert isinstance(slot.step, Send)  # noqa: S101 - nothing else is refused
        self.return_buffer(budget)
        self.has_read, self.misread = False, True
        self.numbers.refused(slot.step.delivery)
        if self.claim.lane == Lane.CALLBACK:
            self.hold(slot.step.delivery, EXPIRED_SECONDS)
        slot.give_back(budget)
        return NotStarted()

    def passed(self, delivery: Outgoing) -> None:
        """Note that `delivery` holds nothing up, and whose turn it is: new or deferred ones (contract 4.6)."""
        if delivery.id not in self.holds:
            self.deferred_next = not delivery.is_deferred
        self.holds.end(delivery.id)

    def due_heads(self, now: float) -> list[int]:
        """Return the held deliveries that are sent next, oldest first: they are due, and no slot has taken them."""
        if not self.holds:
            return []
        taken = {*taken_by(self.slots)}
        return [delivery_id for delivery_id in self.holds.due(now) if delivery_id not in taken]

    def reads(self, step: Read) -> bool:
        """Whether a page is read at once, and not when there is new work."""
        return not step.linger or self.has_hint or self.must_stop()

    @property
    def left_out_until(self) -> float:
        """Time since boot from which on the first of the subscriptions that were left out may be sent to."""
        return min(self.left_out.values(), default=math.inf)

    def lacks_due(self) -> bool:
        """Whether something has become due that has not been read: it is held, or its subscription was left out."""
        now = boot_clock.since_boot()
        return self.left_out_until <= now or not {*self.due_heads(now)} <= {one.id for one in self.buffer.heads}

    def is_used_up(self) -> bool:
        """Whether slots have taken of the page what they may: all of it, or the one delivery that is a probe."""
        return (self.buffer.is_low and not self.buffer.is_starved) or not self.probed_by(self.slots) <= self.probed

    def probed_by(self, slots: Iterable[Slot]) -> set[int]:
        """Return the half-open subscriptions of which slots have a delivery whose outcome is not recorded yet."""
        if not self.has_probes:
            return set()
        deliveries = [one for slot in slots for one in (slot.in_flight, getattr(slot.step, "delivery", None)) if one]
        return {one.destination.subscription_id for one in deliveries if one.destination.half_open}

    def has_room(self, slot: Slot) -> bool:
        """Whether `slot` may send something, as a held delivery takes up the place of one in flight."""
        if not self.holds:
            return True
        others = sum(not isinstance(other.step, Rest) for other in self.slots if other is not slot)
        return others + len(self.holds.resting(boot_clock.since_boot())) < self.claim.concurrency

    def chooser(self, slot: Slot, may_go: Callable[[Outgoing], bool]) -> Callable[[Outgoing], bool]:
        """Return what tells whether `slot` may send a delivery: `may_go`, and nothing of its key goes before it.

        It is asked for the deliveries of a key in their order: after one that may not go, none of that key may.
        """
        if not self.is_keyed:
            return may_go
        held = self.holds.first_of_keys()
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
        if self.claim.concurrency == 1:
            return True
        is_avoided = self._share_of(delivery) in self.slot_shares.avoided
        return not (is_avoided or (to.half_open and to.subscription_id in self.probed_by(self.slots)))

    def page_request(self) -> PageRequest:
        """Return what is read for the line next; of one slot's line, which will send it, the first is marked too."""
        now = boot_clock.since_boot()
        resting = self.holds.resting(now)
        # A page and the settle before it are one transaction: what is settled may be in the page again. A QUEUE sender
        # reads after its settle: what a slot still has then is not settled.
        staying = [slot for slot in self.slots if self.is_sender or not isinstance(slot.step, Read)]
        marks = self.is_ordered and not self.must_stop() and self.has_room(self.slots[0])
        self.left_out = {subscription_id: until for subscription_id, until in self.left_out.items() if until > now}
        self.misread, self.probed = False, self.probed_by(self.slots)
        return PageRequest(
            line_id=self.id,
            epoch=self.claim.epoch,
            heads=self.due_heads(now),
            capacity=self.page_size,
            max_bytes=self.claim.max_bytes,
            deferred_next=self.deferred_next,
            busy=[*taken_by(staying), *(hold.delivery_id for hold in resting)],
            taken=taken_by(self.slots),
            left_out=[*self.left_out, *self.probed_by(staying), *(() if self.is_keyed else self.slot_shares.avoided)],
            is_concurrent=self.claim.concurrency > 1,
            walk=self._walk([hold.ordering_key for hold in resting]) if self.is_keyed else None,
            mark_as=self.numbers.last + 1 if marks else None,
            cut_short=self.cut_short,
            hanging=self.slot_shares.hanging(now),
        )

    def _walk(self, held: Sequence[str]) -> KeyWalk:
        keys = 2 * self.claim.concurrency
        per_key = max(1, min(self.page_size // keys, MAX_OF_KEY))
        last_used = min(self.numbers.given.values(), default=self.numbers.last + 1) - 1
        unread = [*held, *self.slot_shares.avoided]
        return KeyWalk(self.next_key, keys, per_key, unread, [*self.keys_in_the_way.union(unread)], last_used)

    def receive(self, buffer: Buffer[Any]) -> None:
        """Take a new page; a held delivery that may no longer be sent holds nothing up."""
        self.buffer, self.cut_short, self.has_read, self.has_hint = buffer, [], True, False
        buffer.refill_level = self.claim.refill_level
        if buffer.is_starved:
            self.page_size = self.claim.capacity  # perhaps only the first of what waits cannot be had
        self.next_key, self.last_key, self.read_at = buffer.next_key, None, boot_clock.since_boot()
        for delivery_id in buffer.gone:
            self.holds.end(delivery_id)

    def take_key(self, delivery: Outgoing, slot: Slot) -> None:
        """Let nothing of a delivery's ordering key be sent beside it, which `slot` has taken."""
        key = delivery.ordering_key
        self.busy_keys[key] = slot
        if not delivery.is_deferred:
            self.last_key = max(key, self.last_key or key)

    def rest_at_release(self) -> float | None:
        """Return how many seconds it rests if it is released now, None if it does not.

        Where all that is left waits long for a rate limit, or for its next try, it rests a little.
        """
        if self.rest is not None or self.buffer.has_more:
            return self.rest
        longest = RETRY_LINE_REST_SECONDS if self.is_retry_line else UNORDERED_REST_SECONDS
        if self.left_out:
            wait = self.left_out_until - boot_clock.since_boot()
            return min(wait, longest) if wait > LONG_WAIT_SECONDS else None
        if self.is_retry_line and self.shortest_pause < math.inf:
            return min(self.shortest_pause * RETRY_LINE_REST_SHARE, longest)
        return None

    def update(self) -> LineUpdate:
        """Return what is written on the line's row when it is released."""
        return LineUpdate(self.id, self.claim.epoch, self.numbers.last, self.deferred_next, self.rest_at_release())

    def return_buffer(self, budget: BodyBudget) -> None:
        """Drop what has been read and not taken; it is read again when its turn comes, the keys left over at once."""
        budget.give_back(self.buffer.bytes)
        if self.is_keyed:
            left = {one.ordering_key for one in self.buffer.deferred} & self.busy_keys.keys()
            self.keys_in_the_way = self.keys_in_the_way | left if left else set()
            last = self.last_key
            if last is not None and self.buffer.is_low and any(one.ordering_key > last for one in self.buffer.fresh):
                self.next_key = last + AFTER
        if self.buffer.has_more:
            self.buffer = Buffer(more=True, is_starved=True)


def taken_by(slots: Iterable[Slot]) -> list[int]:
    """Return the deliveries, or QUEUE groups, that slots have taken and whose outcome is not recorded yet."""
    return [taken_id for slot in slots for taken_id in slot.taken_ids]
