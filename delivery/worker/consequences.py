"""What an outcome comes to under its delivery's retry policy: the verdict, and what follows beside it (behaviour 5)."""

from typing import Final

from delivery.outcomes import Decision, Outcome
from delivery.retry import History, Verdict, judge
from delivery.worker.buffer import InHand
from delivery.worker.ledgers import Ledger
from delivery.worker.settlements import Further
from subscriptions.names import is_own

ANNOUNCED: Final = frozenset({Decision.REJECTED, Decision.FAILED, Decision.SUSPEND})
NOTHING: Final = Further()


def verdict_on(line: Ledger, delivery: InHand, outcome: Outcome, *, chance: float) -> Verdict:
    """Return what the policy in force when the request started makes of its outcome (behaviour 4.15)."""
    destination = delivery.destination
    history = History(
        delivery.attempts,
        delivery.times_set_aside,
        line.failures,
        is_apart=line.is_apart,
        half_open=destination.half_open,
    )
    return judge(outcome, destination.policy, history, chance=chance)


def further_of(line: Ledger, delivery: InHand, decision: Decision) -> Further | None:
    """Return what else follows from a request: as a rule nothing."""
    policy, half_open = delivery.destination.policy, delivery.destination.half_open
    if decision is Decision.DELIVERED and not half_open:
        return None
    suspends = decision is Decision.SUSPEND
    # What retries apart goes to the retry line; where it suspends, it goes back to its place in the main line.
    moves = decision is (Decision.SUSPEND if line.is_apart else Decision.RETRY_LANE)
    # In a retry line nothing is held, nor set aside, whatever TeamForge would make of the answer.
    is_told = decision is not Decision.DELIVERED and (policy.spacing is not None or line.is_apart)
    further = Further(
        to_line_id=line.claim.sister_id if moves else None,
        suspends=suspends,
        resumes=half_open and not suspends,
        stamp=delivery.destination.stamp if suspends else None,
        probe=policy.probe_seconds if suspends else None,
        announces=(half_open or decision in ANNOUNCED) and _may_be_announced(delivery.content.event_type),
        meaning=decision.meaning if is_told else None,
    )
    return None if further == NOTHING else further


def _may_be_announced(event_type: str) -> bool:
    """Tell whether it is neither an announcement itself nor the reply to a callback (behaviour 5.7)."""
    return bool(event_type) and not is_own(event_type)
