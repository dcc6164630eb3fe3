"""The values that a settle takes and returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from delivery.statuses import DeliveryStatus

NEVER_CONFIGURED: Final = 0
"""The config_version of where a reply goes: the URL that was published, which nobody changes."""


@dataclass(frozen=True, slots=True)
class SideEffects:
    """What a request has led to beside its delivery's status: as a rule nothing (contract 5.3 to 5.7)."""

    to_line_id: int | None = None
    """The line it goes to, where it does not stay in its own."""
    suspends: bool = False
    """Whether its subscription is paused."""
    resumes: bool = False
    """Whether its subscription, on trial, goes on."""
    config_version: int | None = None
    """What its configuration was then, where it suspends: what has changed since is not judged by it (4.15)."""
    probe: float | None = None
    """Seconds until a subscription that is paused is tried."""
    announces: bool = False
    """Whether an event of the broker's own tells of the delivery's end, or of the pause's beginning or end."""
    meaning: str | None = None
    """What the answer came to, in a word, where the default policy would read it otherwise."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What one request made of its delivery, and the attempt that is recorded of it."""

    line_id: int
    delivery_id: int
    status: DeliveryStatus
    """A final status, or PENDING for what stays."""
    pause: float | None
    """Seconds until a delivery set aside is due again; None leaves its place in the line as it is."""
    uncertain: bool
    """Whether the endpoint may have got the request although no answer says so."""
    sequence_unused: bool
    """Whether its number was given for this request, which certainly was never sent: it gives the number back."""
    reason: str
    started_at: datetime
    duration_ms: int
    status_code: int | None
    answer_headers: bytes
    answer_excerpt: bytes
    group_id: int | None = None
    """The QUEUE group that it was made for."""
    again: float | None = None
    """Seconds until the group is tried again, if it is not over, where this was the last endpoint of a cycle."""
    side_effects: SideEffects | None = None

    def log_fields(self) -> dict[str, object]:
        """Return what the log says of a delivery that was not taken; never its body."""
        return {
            "delivery_id": self.delivery_id,
            "line_id": self.line_id,
            "status": str(self.status),
            "reason": self.reason,
            "due_in_seconds": self.pause,
        }


@dataclass(frozen=True, slots=True)
class Withheld:
    """A delivery that was not sent because its script brought nothing to send: no attempt, no number."""

    line_id: int
    delivery_id: int
    status: DeliveryStatus
    """HELD, or PENDING for what is set aside."""
    pause: float | None
    """Seconds until it is due again if it is set aside."""
    reason: str

    def log_fields(self) -> dict[str, object]:
        """Return what the log says of it; not its reason, in which a script can put anything, such as the body."""
        return {
            "delivery_id": self.delivery_id,
            "line_id": self.line_id,
            "status": str(self.status),
            "reason": "script failed" if self.status is DeliveryStatus.HELD else "script lost",
            "due_in_seconds": self.pause,
        }


@dataclass(frozen=True, slots=True)
class RateSlot:
    """What a mark takes beside it where its subscription has a rate limit (contract 1.4)."""

    subscription_id: int
    spacing: float
    """Seconds from one to the next."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A delivery to mark as IN_FLIGHT before it is sent, if its config version still is `config_version`."""

    line_id: int
    delivery_id: int
    config_version: int
    sequence: int | None
    """The number it gets unless it has one already; None where the line gives none."""
    group_id: int | None = None
    """The QUEUE group it is one of."""
    rate_slot: RateSlot | None = None
    """None: nothing limits how fast its subscription is sent."""


@dataclass(frozen=True, slots=True)
class LineUpdate:
    """What is written on a line that is let go, or whose lease is renewed."""

    line_id: int
    let_go: bool
    last_sequence: int
    head_id: int | None
    failures: int
    deferred_next: bool
    pause: float | None
    """Seconds a line waits that is held, or for its rate; None where it does not."""
    reason: str
    """Empty: it is not held."""
    config_version: int
    """What its head's configuration was."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settle did."""

    owned: frozenset[int]
    """Lines whose epoch is still ours, and that were settled."""
    locked: frozenset[int]
    """Lines that are still ours but that somebody else has locked: to be settled again. The others are fenced off."""
    ended: frozenset[int]
    """Deliveries whose attempt was recorded now."""
    started: dict[int, int]
    """The number of each delivery that may be sent now; one that is missing may not."""
    waits: Mapping[int, float] = field(default_factory=dict)
    """Seconds until subscriptions with a rate limit may be sent again, where something of them was to be."""
