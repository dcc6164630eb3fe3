"""The story of one delivery: where it comes from, each request beside its answer, what followed and by which rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from delivery.models import Attempt, Delivery
from delivery.outcomes import CALLBACK, QUEUE, SUSPENDED, TEAMFORGE, USED_UP, Answered, RetryAction, Unreachable, decide
from delivery.retry import THROTTLING
from delivery.status.sent_requests import SentRequest, SentRequests

MAX_EXCHANGES: Final = 100
"""Attempts that are told of, the newest."""
DEFAULT_POLICY: Final = "TeamForge"
EFFECTS: Final = {
    RetryAction.HOLD: "holds the line: the delivery is tried again before anything that must not overtake it",
    RetryAction.DEFERRED: "defers the delivery: it is tried again later, and others go on meanwhile",
    RetryAction.RETRY_LANE: "moves the delivery to the retry line, where it is tried again apart from others",
    RetryAction.SUSPEND: "suspends the subscription until its endpoint answers a probe",
    RetryAction.END: "ends the delivery",
}
TO_THE_NEXT: Final = "leaves it to the next endpoint of the group"


class Exchange(NamedTuple):
    """One attempt: its request as it was sent, its answer, and what followed."""

    attempt: Attempt
    """With the answer."""
    request: SentRequest | None
    """None: its message, subscription or address is gone."""
    decision: str
    """What followed by which rule, as a sentence."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What happened to one delivery."""

    origin: str
    """Who or what it comes from, as a sentence."""
    exchanges: Sequence[Exchange]
    """The newest `MAX_EXCHANGES`, in their order."""
    left_out: int
    """Attempts before them."""


def timeline_of(delivery: Delivery) -> Timeline:
    """Return what happened to a delivery; the number of queries does not grow with its attempts."""
    newest = [*delivery.attempt_set.order_by("-id")[: MAX_EXCHANGES + 1]][::-1]
    attempts = newest[-MAX_EXCHANGES:]
    requests = SentRequests(delivery, attempts)
    exchanges = [Exchange(one, requests.of(one), _decision(delivery, one, requests)) for one in attempts]
    left_out = max(0, attempts[0].number - 1) if len(newest) > MAX_EXCHANGES else 0
    return Timeline(_origin(delivery), exchanges, left_out)


def _origin(delivery: Delivery) -> str:
    if delivery.replay_id:
        repeated = f" It repeats delivery {delivery.resubmit_of}." if delivery.resubmit_of else ""
        return f"Created by replay {delivery.replay_id}.{repeated}"
    if delivery.resubmit_of:
        return f"Resubmitted by hand: it repeats delivery {delivery.resubmit_of}."
    message = delivery.message
    if message is None:
        return "Published. The message is not kept any more."
    by = f"by {message.publisher}" if message.publisher else "with a management key"
    return f"Published {by}." if delivery.subscription_id else "The reply to a callback."


def _decision(delivery: Delivery, attempt: Attempt, requests: SentRequests) -> str:
    """Return what followed from an attempt and why, under the rules that were in force when it started."""
    configured = requests.configured_at(attempt.started_at)
    rules, rule = TEAMFORGE, f"retry policy {(configured and configured.retry_policy) or DEFAULT_POLICY}"
    if delivery.group_id:
        rules, rule = QUEUE, "rules of QUEUE events"
    elif delivery.subscription_id is None:
        rules, rule = CALLBACK, "rules of replies to callbacks"
    status = attempt.status_code
    decision = decide(Unreachable(attempt.error) if status is None else Answered(status), rules)
    is_last = attempt.number == delivery.attempts
    if not attempt.meaning and decision.final_status:
        effect = f"{EFFECTS[RetryAction.END]} as {decision.final_status.label}"
    elif delivery.group_id:
        effect = TO_THE_NEXT
    else:
        effect = EFFECTS[RetryAction(attempt.meaning or decision.retry_action)]
    used_up = ", and was its last retry" if is_last and delivery.reason.startswith((USED_UP, SUSPENDED)) else ""
    return f"{_kind_of_answer(status, attempt)} {effect}{used_up} ({rule})."


def _kind_of_answer(status: int | None, attempt: Attempt) -> str:
    """Return the kind of answer that the rules tell apart."""
    if status is None:
        return "No answer"
    if status == 503 or (status in THROTTLING and attempt.meaning):  # noqa: PLR2004
        return f"{status}"
    return f"{status // 100}xx"
