"""What is written on a line's row, as its driver knows it: last number, head, failures, whose turn it is."""

from dataclasses import dataclass, field

from delivery.lines.hands import InHand
from delivery.lines.steps import Hold
from delivery.models import Lane
from delivery.settling.settlements import LineState, Mark
from delivery.waking.claiming import Claim


@dataclass(slots=True, eq=False)
class Ledger:
    """The columns of a claimed line that its driver keeps; written when it lets go or renews its lease."""

    claim: Claim
    last_sequence: int = field(init=False)
    head_id: int | None = field(init=False)
    failures: int = field(init=False)
    aside_next: bool = field(init=False)

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
    def gives_numbers(self) -> bool:
        """Whether what it sends first has a place in an order: then it has the next number (behaviour 4.10)."""
        return self.claim.lane == Lane.MAIN

    def passed(self, delivery: InHand) -> None:
        """Note that `delivery` no longer holds the line, and whose turn it is next."""
        if delivery.id == self.head_id:
            self.head_id = None
        else:
            self.aside_next = not delivery.is_aside
        self.failures = 0

    def mark(self, delivery: InHand) -> Mark:
        """Return what marks `delivery` as under way, with the line's next number."""
        number = self.last_sequence + 1 if self.gives_numbers else None
        return Mark(self.id, delivery.id, delivery.destination.stamp, number, delivery.group_id)

    def state(self, *, let_go: bool, hold: Hold | None = None) -> LineState:
        """Return what is written on the line's row."""
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
