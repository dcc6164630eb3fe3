"""The values that pass between a line, the event loop and the database.

Nobody changes one. Those of every delivery are not frozen: that would make them eight times as slow to create.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from delivery.http.transfer import Answer
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from subscriptions.scripting.jobs import Result

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
    config_version: int | None = None
    """Of a suspension: nothing is suspended if the configuration has changed since the request started (4.15)."""
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
    """A final status, or PENDING for a delivery that stays."""
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
    group_id: int | None = None
    """The delivery's QUEUE group."""
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

    @property
    def log_reason(self) -> str:
        """What the log says of a delivery that was not taken."""
        return self.reason


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

    @property
    def log_reason(self) -> str:
        """What the log says of it instead of its reason: a script can put the body into that."""
        return "script failed" if self.status is DeliveryStatus.HELD else "script lost"


Ended = Settlement | Withheld


@dataclass(frozen=True, slots=True)
class LineUpdate:
    """What is written on the row of a line that is released."""

    line_id: int
    last_sequence: int
    deferred_next: bool
    pause: float | None
    """Seconds that it rests although it has work."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until this delivery's subscription may be sent to again (contract 1.4)."""

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
"""None answers a `Read` (the line has its page), a `Wait`, and a `Rest` whose slot is called back. A script's result
answers a `Transform`."""
