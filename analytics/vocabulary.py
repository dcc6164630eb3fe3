"""The broker's words for the Spark application, read off the enums and rules that own them."""

from collections.abc import Callable
from typing import Final

from analytics.pipeline.job import Vocabulary
from delivery import outcomes
from delivery.models import MessageOutcome
from delivery.outcomes import NO_ANSWER, Answered, Decision, Outcome, RetryAction, RetryRules, Unreachable, decide
from delivery.statuses import NEUTRAL, UNFINISHED, DeliveryStatus
from subscriptions.models import DeliveryMode, EventKind

PULLED: Final = "MAILBOX"
"""The kind of deliveries fetched from mailboxes, next to the kinds of events: their clients decide when."""

REPLY: Final = "CALLBACK"
"""The kind of replies to callbacks, next to the kinds of events."""

RULES: Final[dict[str, RetryRules]] = {
    EventKind.TOPIC: outcomes.TEAMFORGE,
    EventKind.QUEUE: outcomes.QUEUE,
    PULLED: outcomes.TEAMFORGE,
    REPLY: outcomes.CALLBACK,
}
"""The meaning of an answer where none is recorded with the attempt (`RetryAction`).

Mailbox deliveries have answers from before their subscription was switched to pull. SYNC calls never hold a line.
"""


def vocabulary() -> Vocabulary:
    """Return the words of this version of the broker."""
    by_status: dict[int, Outcome] = {0: Unreachable(""), **{status: Answered(status) for status in range(100, 600)}}

    def answers(fits: Callable[[Decision], bool]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return, for each kind, the statuses whose decision fits; 0 stands for no answer."""
        return tuple(
            (kind, tuple(status for status, outcome in by_status.items() if fits(decide(outcome, rules))))
            for kind, rules in RULES.items()
        )

    return Vocabulary(
        statuses=tuple(DeliveryStatus.values),
        unfinished=tuple(sorted(UNFINISHED)),
        delivered=DeliveryStatus.DELIVERED.value,
        neutral=tuple(status.value for status in NEUTRAL),
        redundant=DeliveryStatus.REDUNDANT.value,
        kinds=(*EventKind.values, PULLED, REPLY),
        pulled_kind=PULLED,
        pull_mode=DeliveryMode.PULL.value,
        sync_kind=EventKind.SYNC.value,
        outcomes=tuple(MessageOutcome.values),
        failures=tuple((f"({NO_ANSWER})?({pattern.pattern})", kind) for pattern, kind in outcomes.KINDS.items()),
        unknown_failure=outcomes.UNKNOWN,
        holding=answers(lambda decision: decision is Decision.HOLD_THE_LINE),
        ending=answers(lambda decision: decision.final_status is not None),
        means_hold=RetryAction.HOLD.value,
        means_deferred=RetryAction.DEFERRED.value,
        means_retry_lane=RetryAction.RETRY_LANE.value,
        means_end=RetryAction.END.value,
    )
