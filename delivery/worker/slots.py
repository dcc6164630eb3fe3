"""What a line's slots do: the steps that they ask for, what comes of these, and the state that each slot is in.

The slots of all lines of a process are each in one state, and `MAY_FOLLOW` says which may follow which. Nobody changes
the values that pass between a line, the event loop and the database; not frozen, they are made eight times as fast.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Any, Final, Never

from broker_project.core import boot_clock
from delivery.http.transfer import Answer, EncodedRequest
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import BodyBudget, any_may
from subscriptions.scripting.jobs import Made, NotRun, Result

if TYPE_CHECKING:
    from delivery.worker.line import ActiveLine

SUCCESS: Final = range(200, 300)


@dataclass(frozen=True, slots=True)
class SideEffects:
    """What a request changes besides its delivery: usually nothing (contract 5.3 to 5.7)."""

    to_line_id: int | None = None
    """The line that the delivery moves to."""
    suspends: bool = False
    """Whether its subscription is paused."""
    resumes: bool = False
    """Whether its half-open subscription resumes."""
    diverts: bool | None = None
    """Whether the diversion of its subscription begins, or ends (contract 5.10); None: neither."""
    config_version: int | None = None
    """Of what suspends or diverts: nothing does if the configuration has changed since the request started (4.15)."""
    probe: float | None = None
    """Seconds until a suspended subscription is tried."""
    announces: bool = False
    """Whether the broker publishes an event about the delivery's end, or about the pause."""
    meaning: str | None = None
    """The attempt's `RetryAction`, if the default policy would read the answer otherwise."""


@dataclass(slots=True)
class Settlement:
    """The outcome of one request for its delivery, and the attempt that is recorded."""

    line_id: int
    delivery_id: int
    status: DeliveryStatus
    """A final status; PENDING or HELD for a delivery that stays."""
    pause: float | None
    """Seconds until a deferred delivery is due again; None leaves its place in the line as it is."""
    uncertain: bool
    """Whether the endpoint may have received the request although no answer says so."""
    sequence_unused: bool
    """Whether its number was given for this request, which was certainly never sent: the number is given back."""
    reason: str
    started_at: datetime
    duration_ms: int
    status_code: int | None
    answer_headers: bytes
    answer_excerpt: bytes
    sent: bytes | None = None
    """What the attempt keeps of the request; None: nothing."""
    group_id: int | None = None
    """The delivery's QUEUE group."""
    message_id: int = 0
    subscriber: str = ""
    again: float | None = None
    """Seconds until an open group is tried again, if this was the last endpoint of its cycle."""
    side_effects: SideEffects | None = None

    def row(self) -> dict[str, Any]:
        """Return what the database is told: only what is to be said, for each value costs as much as a row."""
        said: dict[str, Any] = {
            "line_id": self.line_id,
            "delivery_id": self.delivery_id,
            "group_id": self.group_id,
            "status": self.status,
            "started_at": self.started_at,
            "duration_ms": self.duration_ms,
            "status_code": self.status_code,
            "answer_headers": self.answer_headers,
            "answer_excerpt": self.answer_excerpt,
        }
        if self.sent:
            said["sent"] = self.sent
        if self.status is not DeliveryStatus.DELIVERED or self.side_effects:
            said |= {
                "pause": self.pause,
                "again": self.again,
                "uncertain": self.uncertain,
                "sequence_unused": self.sequence_unused,
                "reason": self.reason,
                "side_effects": self.side_effects,
            }
        return said


@dataclass(frozen=True, slots=True)
class Withheld:
    """A delivery that is not sent because its script made nothing to send: no attempt, no number."""

    line_id: int
    delivery_id: int
    status: DeliveryStatus
    """HELD, or PENDING if it is deferred."""
    pause: float | None
    """Seconds until a deferred delivery is due again."""
    reason: str
    message_id: int = 0
    subscriber: str = ""

    @property
    def log_reason(self) -> str:
        """What the log says of it instead of its reason: a script can put the body into that."""
        return "script failed" if self.status is DeliveryStatus.HELD else "script lost"


Ended = Settlement | Withheld


@dataclass(frozen=True, slots=True)
class LineUpdate:
    """What is written on the row of a line that is released."""

    line_id: int
    epoch: int
    last_sequence: int
    deferred_next: bool
    pause: float | None
    """Seconds that it rests although it has work."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until this delivery may be sent: for its rate limit (contract 1.4), or for a process (4.19)."""

    delivery: Outgoing
    seconds: float


@dataclass(frozen=True, slots=True)
class Transform:
    """Run this delivery's script."""

    delivery: Outgoing


@dataclass(slots=True)
class Send:
    """Mark and send this delivery."""

    delivery: Outgoing
    request: EncodedRequest | None = None
    """All but its number, which comes with the mark: built while that is on its way."""


@dataclass(frozen=True, slots=True)
class Read:
    """Read a page."""

    linger: bool = False
    """Whether to wait a moment first, because there was nothing to send."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Release the line if its other slots rest too."""


Step = Wait | Transform | Send | Read | Rest
"""What a slot does next, once what ended before has been settled."""


@dataclass(slots=True)
class RequestSent:
    """A request that was started, and its answer."""

    answer: Answer
    started_at: datetime

    @property
    def is_success(self) -> bool:
        """Whether it was answered with a status of 2xx."""
        return self.answer.status in SUCCESS and not self.answer.failure


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The delivery may no longer be sent as it was read: read its page again."""


Reply = RequestSent | NotStarted | Result | None
"""None answers a `Read`, whose page is there, a `Wait` and a called-back `Rest`, a script's result a `Transform`."""

Story = Generator[Step, Reply, Never]
"""A slot's generator. It never ends: when its line is released, it is dropped."""


class SlotState(IntEnum):
    """What a slot waits for; a number, which a dictionary finds in half the time."""

    SETTLING = auto()
    """The next settle, which records what ended and marks what it sends next."""
    LOCKED = auto()
    """The same, but somebody else has locked its line for a moment."""
    READING = auto()
    """A page of its line."""
    IDLE = auto()
    """New work: there was nothing to send, and it looks again in a moment."""
    PACING = auto()
    """Its subscription's rate limit, or an isolated process."""
    TRANSFORMING = auto()
    """The script of its delivery."""
    IN_FLIGHT = auto()
    """The answer to its request."""
    PARKED = auto()
    """The end of its line's other slots, after which the line is released."""


MAY_FOLLOW: Final[dict[SlotState, frozenset[SlotState]]] = {
    **{state: frozenset({SlotState.SETTLING}) for state in SlotState},
    SlotState.SETTLING: frozenset(SlotState),
    SlotState.IDLE: frozenset({SlotState.SETTLING, SlotState.READING}),
}
"""From each state, which may follow: a settled step says where its slot goes, and elsewhere the next is settled."""


@dataclass(slots=True, eq=False)
class Slot:
    """One request at a time of a line, with the generator that runs it."""

    line: "ActiveLine"
    generator: Story = field(init=False)
    """Run by `Rounds` only."""
    state: SlotState = SlotState.SETTLING
    """Changed by `Slots.move` only."""
    step: Step = field(default_factory=Read)
    """What its generator wants next."""
    ended: Ended | None = None
    """What is settled before that: the outcome of what it did last, set by its generator."""
    resumes_at: float = 0.0
    """Time since boot when it goes on after its rate limit, or is settled at the latest."""
    idle_since: float = 0.0
    """Time since boot from which on it has waited for new work."""
    in_flight: Outgoing | None = None
    """The delivery of its request or script, until the outcome is recorded."""
    waiting_since: float | None = None
    """Time since boot at which its request or script began."""
    paced_for: int | None = None
    """The subscription whose rate limit it waits for, or for which it waits for a process (contract 4.19)."""
    started_at: datetime | None = None
    sequence: int | None = None
    """The number under which it may send what it sends next, or sends; None: it may not."""
    taken_ids: list[int] = field(default_factory=list)
    """The deliveries, or QUEUE groups, that it has taken, until their outcome is recorded."""
    taken_keys: list[str] = field(default_factory=list)
    """Their ordering keys, if the order within each counts."""
    held: int = 0
    """Bytes of bodies taken from the process's budget."""
    may_be_marked: bool = False
    """Whether what it sends next may be marked already, by a settle whose commit was not heard."""
    may_be_settled: bool = False
    """The same of what ended: whether it may be recorded already."""

    @property
    def may_settle_later(self) -> bool:
        """Whether nothing waits for the record of what ended: it was delivered, and its line has nothing more to send.

        The replies to QUEUE events wait for it, and of an ordering key what comes next.
        """
        line, step, ended = self.line, self.step, self.ended
        return (
            isinstance(step, Read)
            and isinstance(ended, Settlement)
            and ended.status is DeliveryStatus.DELIVERED
            and not ended.side_effects
            and not (line.is_sender or line.is_keyed or line.buffer.has_more or line.reads(step))
        )

    @property
    def marked_as(self) -> int | None:
        """The number under which its page has marked what it sends next; None: that is to be settled before."""
        return self.step.delivery.marked_as if isinstance(self.step, Send) and not self.ended else None

    @property
    def is_unsettled(self) -> bool:
        """Whether its step has yet to be settled."""
        return self.state in {SlotState.SETTLING, SlotState.LOCKED}

    def has_waited(self, now: float, seconds: float) -> bool:
        """Whether its request or script has run for that time."""
        return self.waiting_since is not None and now >= self.waiting_since + seconds

    def take(self, may_go: Callable[[Any], bool] = any_may) -> Any:
        """Take what goes next, of what may, from the line's buffer; None if there is nothing."""
        if self.line.is_keyed:
            for key in self.taken_keys:
                self.line.buffer.free(key)  # its own: what comes next of it is settled together with what has ended
            busy = self.line.busy_keys
            self.line.buffer.set_aside(lambda one: busy.get(one.ordering_key, self) is not self)  # another slot's
        taken = self.line.buffer.take(deferred_next=self.line.deferred_next, may_go=may_go)
        if taken:
            self.held += taken.size
            self.taken_ids.append(taken.id)
            if self.line.is_keyed:
                self.taken_keys.append(taken.ordering_key)
                self.line.take_key(taken, self)
        return taken

    def prepare(self, delivery: Outgoing) -> None:
        """Note that the script of `delivery` runs now, before it is sent."""
        self.in_flight, self.waiting_since = delivery, boot_clock.since_boot()

    def with_room(self, budget: BodyBudget, result: Result) -> Result:
        """Return its script's result, `NotRun` if the process holds too many bodies for what it made."""
        if isinstance(result, Made):
            assert self.in_flight  # noqa: S101 - its script has run
            more = max(0, len(result.body or b"") - self.in_flight.size)
            if not more or budget.take(more):
                self.held += more
                return result
        if isinstance(result, Made | NotRun):
            self.line.return_buffer(budget)
            self.give_back(budget)
            return NotRun()
        return result

    def start(self, delivery: Outgoing, sequence: int, *, at: datetime) -> None:
        """Note that `delivery` is sent now, under its number."""
        line = self.line
        self.may_be_marked = False
        line.sent += 1
        line.numbers.sent(delivery, sequence)
        self.in_flight = delivery
        self.started_at, self.waiting_since = at, boot_clock.since_boot()

    def settled(self, budget: BodyBudget) -> None:
        """Note that what had ended is recorded: of what the slot has taken, only what it goes on with is kept."""
        going_on = self.step.delivery if isinstance(self.step, Send | Transform | Wait) else None
        if going_on is None:
            self.give_back(budget)
        elif self.ended:
            budget.give_back(self.held - going_on.size)
            self.held, self.in_flight = going_on.size, None
            self.taken_ids = [going_on.group_id or going_on.id]
            self._free_keys(going_on.ordering_key)
        self.ended, self.may_be_settled = None, False

    def give_back(self, budget: BodyBudget) -> None:
        """Drop what it has taken."""
        budget.give_back(self.held)
        self.held, self.in_flight, self.taken_ids = 0, None, []
        self._free_keys()

    def _free_keys(self, *kept: str) -> None:
        for key in {*self.taken_keys}.difference(kept):
            del self.line.busy_keys[key]
            self.line.buffer.free(key)
        if self.taken_keys:
            self.taken_keys = [*kept]


class Slots:
    """The slots of a process by state, in the order in which they came into it; `move` alone changes a state."""

    def __init__(self) -> None:
        self._in: dict[SlotState, dict[Slot, None]] = {state: {} for state in SlotState}

    def __getitem__(self, state: SlotState) -> list[Slot]:
        """Return the slots in a state; they may be moved meanwhile."""
        return [*self._in[state]]

    def any_in(self, state: SlotState) -> bool:
        """Tell whether a slot is in a state."""
        return bool(self._in[state])

    def add(self, line: "ActiveLine") -> None:
        """Take in the slots of a line."""
        for slot in line.slots:
            self._in[slot.state][slot] = None

    def move(self, slot: "Slot", state: SlotState) -> None:
        """Put a slot into another state."""
        if state not in MAY_FOLLOW[slot.state]:
            raise ValueError(f"{state} may not follow {slot.state}")
        del self._in[slot.state][slot]
        self._in[state][slot] = None
        slot.state = state

    def drop(self, line: "ActiveLine") -> None:
        """Forget the slots of a line."""
        for slot in line.slots:
            del self._in[slot.state][slot]
