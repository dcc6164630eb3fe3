"""What happened to a request, and what that means for its delivery (contract 4.3 to 4.8)."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Final

from delivery.statuses import DeliveryStatus


@dataclass(frozen=True, slots=True)
class Answered:
    """A complete HTTP answer came back."""

    status: int
    retry_after: float | None = None
    """Seconds the endpoint asked us to wait."""

    def __str__(self) -> str:
        return f"answered {self.status}"


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No complete answer came back."""

    reason: str
    was_sent: bool = False
    """Whether the request may have reached the endpoint, so that its outcome is unknown."""
    is_refused: bool = False
    """Whether it was not sent because nothing is sent to the endpoint's address."""

    def __str__(self) -> str:
        return f"no answer: {self.reason}"


Outcome = Answered | Unreachable


class Meaning(StrEnum):
    """What is recorded of an attempt under a retry policy of its own, or in a retry line (contract 5.2)."""

    HOLD = "hold"
    DEFERRED = "deferred"
    RETRY_LANE = "retry_lane"
    SUSPEND = "suspend"
    END = "end"
    """It was the last."""


class Decision(Enum):
    """What an outcome means for the delivery and its line."""

    DELIVERED = DeliveryStatus.DELIVERED
    REJECTED = DeliveryStatus.REJECTED
    NOT_SUPPORTED = DeliveryStatus.NOT_SUPPORTED
    FAILED = DeliveryStatus.FAILED
    """Its retries are used up."""
    DEFER = "defer"
    """Stays pending, the next one goes."""
    HOLD_THE_LINE = "hold the line"
    """Stays pending and must not be overtaken."""
    RETRY_LANE = "retry lane"
    """Stays pending in its subscriber's retry line."""
    SUSPEND = "suspend"
    """Stays pending at its place, and its subscription is paused."""

    @property
    def final_status(self) -> DeliveryStatus | None:
        """The status the delivery ends in, or None where it stays pending."""
        return self.value if isinstance(self.value, DeliveryStatus) else None

    @property
    def meaning(self) -> Meaning:
        """What is recorded of the attempt."""
        return _MEANINGS.get(self, Meaning.END)


_MEANINGS: Final = {
    Decision.HOLD_THE_LINE: Meaning.HOLD,
    Decision.DEFER: Meaning.DEFERRED,
    Decision.RETRY_LANE: Meaning.RETRY_LANE,
    Decision.SUSPEND: Meaning.SUSPEND,
}


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Which outcome means what."""

    on_no_answer: Decision
    by_status: Mapping[int, Decision] = field(default_factory=dict)
    by_class: Mapping[int, Decision] = field(default_factory=dict)
    """By the status' first digit."""
    otherwise: Decision = Decision.DEFER


TEAMFORGE: Final = RetryRules(
    on_no_answer=Decision.HOLD_THE_LINE,
    by_status={503: Decision.HOLD_THE_LINE},
    by_class={2: Decision.DELIVERED, 3: Decision.NOT_SUPPORTED, 4: Decision.REJECTED},
)
"""The default: 5xx is set aside, 503 and no answer hold the line, it never gives up (contract 5.1)."""

QUEUE: Final = RetryRules(
    on_no_answer=Decision.DEFER,
    by_class={2: Decision.DELIVERED, 3: Decision.NOT_SUPPORTED, 4: Decision.REJECTED},
)
"""Nothing holds a QUEUE sender: the group's next endpoint is asked, and those not ended again later (contract 6.5)."""

CALLBACK: Final = replace(TEAMFORGE, otherwise=Decision.HOLD_THE_LINE)
"""The same for the reply to a callback, with which nothing else waits: whatever does not end it holds it (6.8)."""


def is_out_of_reach(outcome: Outcome) -> bool:
    """Tell whether the endpoint is where nothing is sent: trying again soon does not help."""
    return isinstance(outcome, Unreachable) and outcome.is_refused


def decide(outcome: Outcome, rules: RetryRules) -> Decision:
    """Return what an attempt's outcome makes of its delivery."""
    match outcome:
        case Unreachable():
            return rules.on_no_answer
        case Answered(status) if status in rules.by_status:
            return rules.by_status[status]
        case Answered(status):
            return rules.by_class.get(status // 100, rules.otherwise)
