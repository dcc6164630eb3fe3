"""What is written on a line's row, as its driver knows it: last number, head, failures, whose turn it is."""

from dataclasses import dataclass, field

from delivery.dispatch.claim import Claim
from delivery.models import Lane
from delivery.webhook.parts import Destination
from delivery.worker.buffer import InHand
from delivery.worker.settlements import LineState, Mark, Slot
from delivery.worker.steps import Hold


@dataclass(slots=True, eq=False)
class Ledger:
    """The columns of a claimed line that its driver keeps; written when it lets go or renews its lease."""

    claim: Claim
    last_sequence: int = field(init=False)
    head_id: int | None = field(init=False)
    failures: int = field(init=False)
    aside_next: bool = field(init=False)
    hold: Hold | None = field(init=False, default=None)
    """For how long it waits once it has been let go, which it is when what it has under way has been answered."""

    def __post_init__(self) -> None:
        self.last_sequence = self.claim.last_sequence
        self.head_id = self.claim.head_id
        self.failures = self.claim.failures
        self.aside_next = self.claim.aside_next

    @property
    def id(self) -> int:
        """The line's id."""
        return self.claim.line_id

    @property
    def is_apart(self) -> bool:
        """Whether it tries again what did not succeed in the subscriber's main line (behaviour 5.3)."""
        return self.claim.lane == Lane.RETRY

    @property
    def is_sender(self) -> bool:
        """Whether it sends QUEUE groups."""
        return self.claim.lane == Lane.QUEUE

    @property
    def gives_numbers(self) -> bool:
        """Whether its order counts: then what it sends first has the next number (behaviour 4.10, 4.13)."""
        return self.claim.lane == Lane.MAIN and self.claim.strands == 1

    @property
    def is_held(self) -> bool:
        """Whether something that it sent must not be overtaken; what only waits for its rate does not count."""
        return self.hold is not None and bool(self.hold.reason)

    def waits_for(self, delivery: InHand) -> bool:
        """Whether nothing else is sent before `delivery`: its order counts, or it holds the line (behaviour 4.7)."""
        is_held = self.failures > 0 and delivery.id == self.head_id
        return self.gives_numbers or (is_held and not self.is_apart)

    def holds(self, delivery: InHand, hold: Hold) -> None:
        """Note that `delivery` must not be overtaken; of several that were under way the first one's word counts."""
        if self.is_held:
            return
        self.hold = hold
        self._stops_at(delivery)
        self.failures += 1

    def waits_with(self, delivery: InHand, seconds: float) -> None:
        """Note that `delivery` waits for its rate, and the line with it (behaviour 1.4, 4.7, 4.12)."""
        self.hold = Hold(seconds, "", delivery.destination.stamp)
        self._stops_at(delivery)

    def passed(self, delivery: InHand) -> None:
        """Note that `delivery` no longer holds the line, and whose turn it is next."""
        if delivery.id == self.head_id:
            self.head_id = None
        else:
            self._had_its_turn(delivery)
        if not self.is_held:
            self.failures = 0

    def _stops_at(self, delivery: InHand) -> None:
        """Note that `delivery` is the head now: once it is sent as such, nobody knows any more whose turn it was."""
        if delivery.id != self.head_id:
            self._had_its_turn(delivery)
        self.head_id = delivery.id

    def _had_its_turn(self, delivery: InHand) -> None:
        """Note that it is the turn of the other kind: of those never sent, or of those set aside (behaviour 4.6)."""
        self.aside_next = not delivery.is_aside

    def is_as_claimed(self, destination: Destination) -> bool:
        """Whether its subscriber is still sent as many at a time as when it was claimed (behaviour 4.13)."""
        return self.is_apart or destination.strands == self.claim.strands

    def mark(self, delivery: InHand) -> Mark:
        """Return what marks `delivery` as under way, with the line's next number."""
        number = self.last_sequence + 1 if self.gives_numbers else None
        to, slot = delivery.destination, None
        if to.spacing is not None:
            slot = Slot(to.subscription_id, to.spacing)
        return Mark(self.id, delivery.id, to.stamp, number, delivery.group_id, slot)

    def hold_at_rest(self) -> Hold | None:
        """Return for how long it waits if it is let go now, None where it does not."""
        return self.hold

    def state(self, *, let_go: bool) -> LineState:
        """Return what is written on the line's row."""
        hold = self.hold_at_rest() if let_go else None
        return LineState(
            line_id=self.id,
            let_go=let_go,
            last_sequence=self.last_sequence,
            head_id=self.head_id,
            failures=self.failures,
            aside_next=self.aside_next,
            pause=hold.pause if hold else None,
            reason=hold.reason if hold else "",
            stamp=hold.stamp if hold else 0,
        )
