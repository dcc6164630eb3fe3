"""What happened to a request, what that means for its delivery (contract 4.3 to 4.8), and what publishers see of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Final

from broker_project.core.egress import NOT_ALLOWED
from delivery.statuses import DeliveryStatus

NO_ANSWER: Final = "no answer: "


@dataclass(frozen=True, slots=True)
class Answered:
    """A complete HTTP answer came back."""

    status: int
    retry_after: float | None = None
    """Seconds that the endpoint asks for."""

    def __str__(self) -> str:
        return f"answered {self.status}"


@dataclass(frozen=True, slots=True)
class Unreachable:
    """No complete answer came back."""

    reason: str
    was_sent: bool = False
    """Whether the request may have reached the endpoint, so that its outcome is unknown."""
    is_refused: bool = False
    """Whether it was not sent because the egress policy refuses the endpoint's address."""
    timed_out: bool = False
    """Whether the endpoint kept its line waiting until a time-out (contract 5.10)."""

    def __str__(self) -> str:
        return f"{NO_ANSWER}{self.reason}"


Outcome = Answered | Unreachable


class RetryAction(StrEnum):
    """What a retry policy did after an attempt; not recorded under the default policy in a main line (contract 5.2)."""

    HOLD = "hold"
    DEFERRED = "deferred"
    RETRY_LANE = "retry_lane"
    SUSPEND = "suspend"
    END = "end"
    """It was the last attempt."""


class Decision(Enum):
    """What an outcome means for the delivery and its line."""

    DELIVERED = DeliveryStatus.DELIVERED
    REJECTED = DeliveryStatus.REJECTED
    NOT_SUPPORTED = DeliveryStatus.NOT_SUPPORTED
    FAILED = DeliveryStatus.FAILED
    """Its retries are used up."""
    DEFER = RetryAction.DEFERRED
    """Stays pending, the next one goes."""
    HOLD_THE_LINE = RetryAction.HOLD
    """Stays pending and must not be overtaken."""
    RETRY_LANE = RetryAction.RETRY_LANE
    """Stays pending in its subscriber's retry line."""
    SUSPEND = RetryAction.SUSPEND
    """Stays pending at its place, and its subscription is paused."""

    @property
    def final_status(self) -> DeliveryStatus | None:
        """The status the delivery ends in, or None where it stays pending."""
        return self.value if isinstance(self.value, DeliveryStatus) else None

    @property
    def retry_action(self) -> RetryAction:
        """What is recorded of the attempt."""
        return self.value if isinstance(self.value, RetryAction) else RetryAction.END


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
"""The default: 5xx defers, 503 and no answer hold the line, it never gives up (contract 5.1)."""

QUEUE: Final = replace(TEAMFORGE, on_no_answer=Decision.DEFER, by_status={})
"""Nothing holds a QUEUE sender: the next endpoint is asked, and those that have not ended later (contract 6.5)."""

CALLBACK: Final = replace(TEAMFORGE, otherwise=Decision.HOLD_THE_LINE)
"""The default for the reply to a callback, behind which nothing waits: what does not end it holds it (6.8)."""


def is_out_of_reach(outcome: Outcome) -> bool:
    """Tell whether the egress policy refuses the endpoint: trying again soon does not help."""
    return isinstance(outcome, Unreachable) and outcome.is_refused


def decide(outcome: Outcome, rules: RetryRules) -> Decision:
    """Return what an attempt's outcome means for its delivery."""
    match outcome:
        case Unreachable():
            return rules.on_no_answer
        case Answered(status) if status in rules.by_status:
            return rules.by_status[status]
        case Answered(status):
            return rules.by_class.get(status // 100, rules.otherwise)


USED_UP: Final = "retries used up: "
"""Prefix of the last outcome of a delivery whose retries are used up."""
SUSPENDED: Final = "suspended: "
"""Prefix of that outcome if the delivery stays and its subscription is paused."""
UNKNOWN: Final = "the connection or the answer broke"

_BEFORE: Final = re.compile(f"(released; |not taken in time: |expired: |{USED_UP}|{SUSPENDED})(.+)", re.DOTALL)
"""Prefixes of the reason that a delivery had before."""
_HEADED: Final = re.compile(r"(filter failed|script failed|script lost): ")

TLS_FAILED: Final = "TLS failed"

KINDS: Final = {
    re.compile(NOT_ALLOWED): "its address is not allowed",
    re.compile(r"Could not resolve "): "the name of its host was not resolved",
    re.compile(r".* (timed out|Timeout was reached)"): "timed out",
    re.compile(r"Failed to connect "): "no connection",
    re.compile(r"(TLS|SSL|OpenSSL)\b"): TLS_FAILED,
}
"""By the beginning of libcurl's text, or of ours; the names in it have no spaces."""
_OWN: Final = re.compile(
    r"expired|answered \d{3}|delivery \d+ was taken|cancelled [A-Za-z ]+|not taken in time"
    r"|unread for \d+ days?|redeliveries used up: not acknowledged \d+ times?|purged[A-Za-z ]*"
    r"|no process was free to run the script|its request ended the process that sent nothing else \(.*\)"
    r"|The endpoint answered \d{3} with (more than [\d,]+ bytes|fewer bytes than it promised)\."
    r"|The endpoint answered with the status \d+, which cannot be passed on\."
)
"""Reasons in the broker's own words."""


def redact_reason(reason: str) -> str:
    """Return what publishers see of a delivery's reason; the full text is for the subscription's owner."""
    if before := _BEFORE.fullmatch(reason):
        return before[1] + redact_reason(before[2])
    if reason.startswith(NO_ANSWER):
        return NO_ANSWER + kind_of(reason.removeprefix(NO_ANSWER))
    if headed := _HEADED.match(reason):
        return headed[1]
    return reason if _OWN.fullmatch(reason) or not reason else "failed"


def kind_of(failure: str) -> str:
    """Return the kind of failure, by the text that says why there is no answer."""
    return next((kind for begins, kind in KINDS.items() if begins.match(failure)), UNKNOWN)
