"""The broker's words for the Spark application, read off the enums and rules that own them."""

from collections.abc import Callable
from typing import Final

from analytics.pipeline.job import Vocabulary
from delivery.models import MessageOutcome
from delivery.outcomes import (
    CALLBACK,
    QUEUE,
    TEAMFORGE,
    Answered,
    Decision,
    Meaning,
    Outcome,
    RetryRules,
    Unreachable,
    decide,
)
from delivery.reasons import KINDS, NO_ANSWER, UNKNOWN
from delivery.statuses import UNFINISHED, DeliveryStatus
from subscriptions.models import DeliveryMode, EventKind

PULLED: Final = "MAILBOX"
"""What deliveries that are fetched count as, beside the kinds of events: their clients take the time they like."""

REPLY: Final = "CALLBACK"
"""What the replies to callbacks count as, beside the kinds of events."""

NEUTRAL: Final = (DeliveryStatus.REDUNDANT, DeliveryStatus.CANCELLED)
"""Somebody else took it, or somebody ended it: nothing that an endpoint did."""

NO_STATUS: Final = 0
RULES: Final[dict[str, RetryRules]] = {
    EventKind.TOPIC: TEAMFORGE,
    EventKind.QUEUE: QUEUE,
    PULLED: TEAMFORGE,
    REPLY: CALLBACK,
}
"""What an answer means where nothing is recorded of that (`Meaning`), being as everybody knows.

What is fetched has answers where it was sent before its subscription was switched. A SYNC call is never held.
"""


def vocabulary() -> Vocabulary:
    """Return the words of this version of the broker."""
    return Vocabulary(
        statuses=tuple(DeliveryStatus.values),
        unfinished=tuple(sorted(UNFINISHED)),
        delivered=DeliveryStatus.DELIVERED.value,
        neutral=tuple(status.value for status in NEUTRAL),
        redundant=DeliveryStatus.REDUNDANT.value,
        kinds=(*EventKind.values, PULLED, REPLY),
        pulled_kind=PULLED,
        pull_mode=DeliveryMode.PULL.value,
        queue_kind=EventKind.QUEUE.value,
        sync_kind=EventKind.SYNC.value,
        outcomes=tuple(MessageOutcome.values),
        failures=tuple((f"({NO_ANSWER})?({pattern.pattern})", kind) for pattern, kind in KINDS.items()),
        unknown_failure=UNKNOWN,
        holding=tuple((kind, _answers(rules, _holds)) for kind, rules in RULES.items()),
        ending=tuple((kind, _answers(rules, _ends)) for kind, rules in RULES.items()),
        means_hold=Meaning.HOLD.value,
        means_deferred=Meaning.DEFERRED.value,
        means_retry_lane=Meaning.RETRY_LANE.value,
        means_end=Meaning.END.value,
    )


def _answers(rules: RetryRules, come_to: Callable[[Decision], bool]) -> tuple[int, ...]:
    """Return the statuses that come to what is asked for."""
    outcomes: dict[int, Outcome] = {status: Answered(status) for status in range(100, 600)}
    outcomes[NO_STATUS] = Unreachable("")
    return tuple(status for status, outcome in outcomes.items() if come_to(decide(outcome, rules)))


def _holds(decision: Decision) -> bool:
    return decision is Decision.HOLD_THE_LINE


def _ends(decision: Decision) -> bool:
    return decision.final_status is not None
