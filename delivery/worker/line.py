"""A line that a worker runs, and its slots: what is written on its row, what it holds, what it has in flight."""

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Never

from requests import PreparedRequest

from delivery.dispatch.claim import Claim
from delivery.limits import LEASE_MARGIN_SECONDS, LEASE_SECONDS, REQUEST_DEADLINE_SECONDS
from delivery.models import Lane
from delivery.webhook.parts import Destination, Outgoing
from delivery.webhook.request import RequestIdentity, webhook_request
from delivery.worker.buffer import BodyBudget, Buffer, FairShare, RateLimiter, any_may
from delivery.worker.pages import PageRequest
from delivery.worker.settlements import LineUpdate, Mark, RateSlot
from delivery.worker.steps import Hold, Reply, Send, Step, Transform, Turn, Wait

SMALLEST_PAGE: Final = 16
SHORTEST_PAGE: Final = 2
"""Of a line that waited for its rate: it sends one, and waits with the next."""
SOON_SECONDS: Final = 2.0
"""What may be sent so soon is waited for: nobody would take a line that has been let go in time for its slot."""

UNORDERED_SECONDS: Final = 1.0
"""How long a line waits in which no order counts where all that is left waits for its rate: something else may come."""
APART_SECONDS: Final = 5.0
"""The same of a retry line, in which nothing else comes so suddenly."""
REST_SHARE: Final = 0.01
"""Of the pause between two tries: so long a retry line rests, that what is due meanwhile is sent in one turn."""

PAGE_MARGIN: Final = 1.25
"""A line reads a little more than it will send before its turn ends, at its pace so far: nothing is read in vain."""
HANGS_SECONDS: Final = 0.25
"""After so long without an answer a slot hangs, and the others of its line do not wait for it."""
PATIENT_SECONDS: Final = 1.0
"""After so long without an answer a line gives back what it has in hand: one that hangs must not starve others."""

Story = Generator[Step, Reply, Never]
"""It never ends: whoever lets the line go drops it."""


@dataclass(slots=True, eq=False)
class Ledger:
    """The columns of a claimed line that its event loop keeps; written when it lets go or renews its lease."""

    claim: Claim
    last_sequence: int = field(init=False)
    head_id: int | None = field(init=False)
    failures: int = field(init=False)
    deferred_next: bool = field(init=False)
    hold: Hold | None = field(init=False, default=None)
    """For how long it waits once it has been let go, which it is when what it has under way has been answered."""

    def __post_init__(self) -> None:
        self.last_sequence = self.claim.last_sequence
        self.head_id = self.claim.head_id
        self.failures = self.claim.failures
        self.deferred_next = self.claim.deferred_next

    @property
    def id(self) -> int:
        """The line's id."""
        return self.claim.line_id

    @property
    def in_retry_line(self) -> bool:
        """Whether it tries again what did not succeed in the subscriber's main line (contract 5.3)."""
        return self.claim.lane == Lane.RETRY

    @property
    def is_sender(self) -> bool:
        """Whether it sends QUEUE groups."""
        return self.claim.lane == Lane.QUEUE

    @property
    def gives_numbers(self) -> bool:
        """Whether its order counts: then what it sends first has the next number (contract 4.10, 4.13)."""
        return self.claim.lane == Lane.MAIN and self.claim.concurrency == 1

    @property
    def is_held(self) -> bool:
        """Whether something that it sent must not be overtaken; what only waits for its rate does not count."""
        return self.hold is not None and bool(self.hold.reason)

    def waits_for(self, delivery: Outgoing) -> bool:
        """Whether nothing else is sent before `delivery`: its order counts, or it holds the line (contract 4.7)."""
        is_held = self.failures > 0 and delivery.id == self.head_id
        return self.gives_numbers or (is_held and not self.in_retry_line)

    def holds(self, delivery: Outgoing, hold: Hold) -> None:
        """Note that `delivery` must not be overtaken; of several that were under way the first one's word counts."""
        if self.is_held:
            return
        self.hold = hold
        self._stops_at(delivery)
        self.failures += 1

    def waits_with(self, delivery: Outgoing, seconds: float) -> None:
        """Note that `delivery` waits for its rate, and the line with it (contract 1.4, 4.7, 4.12)."""
        self.hold = Hold(seconds, "", delivery.destination.config_version)
        self._stops_at(delivery)

    def passed(self, delivery: Outgoing) -> None:
        """Note that `delivery` no longer holds the line, and whose turn it is next."""
        if delivery.id == self.head_id:
            self.head_id = None
        else:
            self._had_its_turn(delivery)
        if not self.is_held:
            self.failures = 0

    def _stops_at(self, delivery: Outgoing) -> None:
        """Note that `delivery` is the head now: once it is sent as such, nobody knows any more whose turn it was."""
        if delivery.id != self.head_id:
            self._had_its_turn(delivery)
        self.head_id = delivery.id

    def _had_its_turn(self, delivery: Outgoing) -> None:
        """Note that it is the turn of the other kind: of those never sent, or of those set aside (contract 4.6)."""
        self.deferred_next = not delivery.is_deferred

    def is_as_claimed(self, destination: Destination) -> bool:
        """Whether its subscriber is still sent as many at a time as when it was claimed (contract 4.13)."""
        return self.in_retry_line or destination.concurrency == self.claim.concurrency

    def mark(self, delivery: Outgoing) -> Mark:
        """Return what marks `delivery` as under way, with the line's next number."""
        number = self.last_sequence + 1 if self.gives_numbers else None
        to, slot = delivery.destination, None
        if to.spacing is not None:
            slot = RateSlot(to.subscription_id, to.spacing)
        return Mark(self.id, delivery.id, to.config_version, number, delivery.group_id, slot)

    def hold_at_rest(self) -> Hold | None:
        """Return for how long it waits if it is let go now, None where it does not."""
        return self.hold

    def state(self, *, let_go: bool) -> LineUpdate:
        """Return what is written on the line's row."""
        hold = self.hold_at_rest() if let_go else None
        return LineUpdate(
            line_id=self.id,
            let_go=let_go,
            last_sequence=self.last_sequence,
            head_id=self.head_id,
            failures=self.failures,
            deferred_next=self.deferred_next,
            pause=hold.pause if hold else None,
            reason=hold.reason if hold else "",
            config_version=hold.config_version if hold else 0,
        )


@dataclass(slots=True, eq=False)
class Holding(Ledger):
    """A claimed line and its page."""

    buffer: Buffer[Any] = field(init=False, default_factory=Buffer)
    """Of deliveries, or of groups where the line is a QUEUE sender's."""
    page_size: int = field(init=False)
    left_out: dict[int, float] = field(init=False, default_factory=dict)
    """Subscriptions for whose rate nobody waits, since others would wait with it, and until when (monotonic)."""
    tried: set[tuple[int, int]] = field(init=False, default_factory=set)
    """Subscriptions on trial of which one has been taken in this turn, and under which configuration."""
    cut_short: list[int] = field(init=False, default_factory=list)
    """Groups in the midst of whose cycle something was no longer as it had been read."""
    has_read: bool = field(init=False, default=False)
    """Whether a page has been read in this turn."""
    shortest_pause: float = field(init=False, default=math.inf)
    """Of those that what it has sent in this turn waits for, in seconds."""

    def __post_init__(self) -> None:
        Ledger.__post_init__(self)  # no `super()`: slots make a class of its own
        waited = self.head_id is not None and not self.failures  # for its rate: not much is sent in this turn
        least = SHORTEST_PAGE if waited else max(SMALLEST_PAGE, 2 * self.claim.concurrency)
        self.page_size = min(least, self.claim.capacity)

    def receive(self, buffer: Buffer[Any]) -> None:
        """Take a new page in hand; a head that is not in it may not be sent any more and holds nothing up."""
        self.buffer, self.cut_short, self.has_read = buffer, [], True
        if buffer.is_starved:
            self.page_size = self.claim.capacity  # perhaps only the first of what waits cannot be had
        if self.head_id is not None and not self.hold and not buffer.head and not buffer.is_starved:
            self.head_id, self.failures = None, 0

    @property
    def is_through(self) -> bool:
        """Whether no look for more is worth while: in a retry line only time brings more, which the sweep watches."""
        return self.in_retry_line and self.has_read and not self.buffer.is_low

    def may_try(self, delivery: Outgoing) -> bool:
        """Whether it may go beside what its line has under way: a trial is one request (contract 5.6)."""
        to = delivery.destination
        return self.claim.concurrency == 1 or (to.subscription_id, to.config_version) not in self.tried

    def tries(self, delivery: Outgoing) -> None:
        """Note that a delivery goes next."""
        to = delivery.destination
        if to.half_open:
            self.tried.add((to.subscription_id, to.config_version))

    def leave_out(self, delivery: Outgoing, until: float) -> None:
        """Note that nothing of its subscription is read until then: nothing waits for it, and it is not tried."""
        to = delivery.destination
        self.left_out[to.subscription_id] = until
        self.tried.discard((to.subscription_id, to.config_version))
        if delivery.id == self.head_id:
            self.head_id, self.failures = None, 0

    def still_left_out(self, now: float) -> list[int]:
        """Return the subscriptions whose time has not come; forget the others."""
        self.left_out = {one: until for one, until in self.left_out.items() if until > now}
        return [*self.left_out]

    def hold_at_rest(self) -> Hold | None:
        """Return for how long it waits if it is let go now, None where it does not.

        A little where all that is left waits long for its rate, or for its next try.
        """
        if self.hold or len(self.buffer) or self.buffer.is_low:
            return self.hold
        most = APART_SECONDS if self.in_retry_line else UNORDERED_SECONDS
        if self.left_out:
            wait = min(self.left_out.values()) - time.monotonic()
            return Hold(min(wait, most), "", 0) if wait > SOON_SECONDS else None
        if self.in_retry_line and self.shortest_pause < math.inf:
            return Hold(min(self.shortest_pause * REST_SHARE, most), "", 0)
        return None

    def return_buffer(self, budget: BodyBudget) -> None:
        """Let go of what is in hand, but not of what is under way; it is read again when its turn comes."""
        budget.give_back(self.buffer.bytes)
        self.buffer = Buffer(more=len(self.buffer) > 0 or self.buffer.is_low)


@dataclass(slots=True, eq=False, kw_only=True)
class UnderWay:
    """The request or the script of one delivery, from when it is taken until what came of it is recorded."""

    in_flight: Outgoing | None = None
    waiting_since: float | None = None
    """Monotonic time since when its request or its script is under way."""
    paced_for: int | None = None
    """The subscription whose rate it waits for."""
    started_at: datetime | None = None
    sequence: int = 0
    """The number of what is under way."""
    taken_ids: list[int] = field(default_factory=list)
    """The deliveries, or QUEUE groups, that it has taken, until what came of them is recorded."""
    held: int = 0
    """Bytes of bodies taken from the process's budget: about to be sent, under way."""
    may_be_marked: bool = False
    """Whether what it sends next may be marked already, by a settle that has not been heard of."""

    def has_waited(self, now: float, seconds: float) -> bool:
        """Whether its request or script has been under way for so long."""
        return self.waiting_since is not None and now >= self.waiting_since + seconds

    def prepare(self, delivery: Outgoing) -> None:
        """Note that the script of `delivery` runs now, before it is sent."""
        self.in_flight, self.waiting_since = delivery, time.monotonic()

    def has_room(self, size: int, budget: BodyBudget) -> bool:
        """Take from `budget` what a body of `size` bytes needs beyond the one it is made from; False: it has not."""
        assert self.in_flight  # noqa: S101 - its script has run
        more = max(0, size - self.in_flight.size)
        if more and not budget.take(more):
            return False
        self.held += more
        return True

    def request(self) -> PreparedRequest:
        """Return the request of what was started."""
        delivery = self.in_flight
        assert delivery  # noqa: S101 - it was started
        assert self.started_at  # noqa: S101
        numbers = RequestIdentity(
            delivery.id,
            self.sequence or None,  # what is in no order has no number
            delivery.attempts + 1,
            delivery.uncertain,
            delivery.group_id,
            delivery.callback_url,
        )
        timestamp = int(self.started_at.timestamp())
        return webhook_request(delivery.content, delivery.destination, numbers, timestamp=timestamp)

    def settled(self, budget: BodyBudget, step: Step) -> None:
        """Note that what had ended is recorded: what the slot has taken is needed only if `step` goes on with it."""
        going_on = step.delivery if isinstance(step, Send | Transform | Wait) else None
        if going_on is None:
            self.give_back(budget)
        elif step.ended:
            budget.give_back(self.held - going_on.size)
            self.held, self.in_flight = going_on.size, None
            self.taken_ids = [going_on.group_id or going_on.id]

    def give_back(self, budget: BodyBudget) -> None:
        """Let go of what it has taken."""
        budget.give_back(self.held)
        self.held, self.in_flight, self.taken_ids = 0, None, []


@dataclass(slots=True, eq=False)
class ActiveLine(Holding):
    """A claimed line in the buffers of an event loop; its generators and its event loop share it, in one thread."""

    run: Turn
    renewed_at: float
    """Monotonic time, taken before the statement that renewed the lease."""
    fair_share: FairShare = field(default_factory=FairShare)
    rate_limiter: RateLimiter = field(default_factory=RateLimiter)
    """Of all lines of the process."""
    slots: list["Slot"] = field(default_factory=list)
    """One where the order counts."""
    resting: list["Slot"] = field(default_factory=list)
    taken_at: float = field(default_factory=time.monotonic)
    sent: int = 0
    """Requests in this turn."""
    stopping: bool = False
    is_outdated: bool = False
    """Whether it has to be claimed anew: its subscriber is sent otherwise now (contract 4.13)."""

    def must_stop(self) -> bool:
        """Whether the turn's time is up; where one of several slots hangs, or waits, the others go on meanwhile."""
        if self.stopping or self.hold or self.is_outdated:
            return True
        now = time.monotonic()
        return now >= self.run.until and not self.hangs(now) and not self._paces(now)

    def hangs(self, now: float) -> bool:
        """Whether a slot waits in vain."""
        return any(one.has_waited(now, HANGS_SECONDS) for one in self.slots)

    def _paces(self, now: float) -> bool:
        """Whether a slot waits for a rate since before the turn's time was up."""
        return now < self.run.until + SOON_SECONDS and any(one.paced_for is not None for one in self.slots)

    def is_paced(self, destination: Destination) -> bool:
        """Whether a slot waits already until its subscription may be sent."""
        return any(one.paced_for == destination.subscription_id for one in self.slots)

    def is_stuck(self, now: float) -> bool:
        """Whether all of them do, and for so long that others should have what is in hand."""
        return all(one.has_waited(now, PATIENT_SECONDS) for one in self.slots)

    @property
    def is_waiting(self) -> bool:
        """Whether a slot waits for an answer or a script."""
        return any(one.waiting_since is not None for one in self.slots)

    def has_time_for(self, seconds: float) -> bool:
        """Whether a slot waits so long for a rate: till after the turn if that is soon, and it keeps no other."""
        now = time.monotonic()
        if now < self.run.until or len(self.slots) == 1:
            return seconds <= max(SOON_SECONDS, self.run.until - now)
        return False

    def fits_the_lease(self, now: float) -> bool:
        """Whether a request whose deadline counts from now has ended before anybody else can take the line."""
        return now - self.renewed_at + REQUEST_DEADLINE_SECONDS + LEASE_MARGIN_SECONDS < LEASE_SECONDS

    def wanted(self) -> PageRequest:
        """Return what is read for the line next."""
        now = time.monotonic()
        busy = [one for slot in self.slots for one in slot.taken_ids]
        return PageRequest(
            self.id,
            self.claim.epoch,
            self.head_id,
            self.page_size,
            self.deferred_next,
            busy,
            self.still_left_out(now),
            self.claim.concurrency > 1,
            self.cut_short,
            self.fair_share.hanging(now),
        )

    def give_all_back(self, budget: BodyBudget) -> None:
        """Let go of everything."""
        self.return_buffer(budget)
        for slot in self.slots:
            slot.give_back(budget)

    def size_page(self) -> None:
        """Choose how much is read next."""
        now = time.monotonic()
        pace = self.sent / (now - self.taken_at)
        left = pace * max(0.0, self.run.until - now)
        least = max(SMALLEST_PAGE, 2 * len(self.slots))
        self.page_size = min(max(least, int(left * PAGE_MARGIN)), self.claim.capacity)


@dataclass(slots=True, eq=False)
class Slot(UnderWay):
    """What a line does at a time: a generator, and the one request that it has under way."""

    line: ActiveLine
    generator: Story | None = None

    def advance(self, reply: Reply) -> Step:
        """Let the generator go on; return what it wants next."""
        assert self.generator is not None  # noqa: S101 - set by whoever made the line
        self.waiting_since = None
        return self.generator.send(reply)

    def take(self, may_go: Callable[[Any], bool] = any_may) -> Any:
        """Take what goes next of what may from the line's buffer, None where there is nothing."""
        taken = self.line.buffer.take(deferred_next=self.line.deferred_next, may_go=may_go)
        if taken:
            self.held += taken.size
            self.taken_ids.append(taken.id)
        return taken

    def start(self, delivery: Outgoing, sequence: int, *, at: datetime) -> None:
        """Note that `delivery` goes out now, under its number."""
        self.may_be_marked = False
        self.line.sent += 1
        if self.line.gives_numbers:
            self.line.last_sequence = max(self.line.last_sequence, sequence)
        self.in_flight, self.sequence = delivery, sequence
        self.started_at, self.waiting_since = at, time.monotonic()
