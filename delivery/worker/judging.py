"""From an answer to what is settled: outcome, attempt, status."""

from datetime import timedelta
from typing import Final

import requests

from delivery.callbacks.address import without_token
from delivery.http.retry_after import retry_after_seconds
from delivery.outcomes import Answered, Decision, Outcome, Unreachable
from delivery.reasons import SUSPENDED, USED_UP
from delivery.retry import HOLDING, Verdict
from delivery.statuses import DeliveryStatus
from delivery.worker.buffer import InHand
from delivery.worker.settlements import Further, Settlement
from delivery.worker.steps import Sent

KEPT_HEADER_BYTES: Final = 2048
KEPT_BODY_BYTES: Final = 1024


def outcome_of(sent: Sent) -> Outcome:
    """Return what happened to the request."""
    result = sent.answer.result
    if isinstance(result, requests.Response):
        answered_at = sent.started_at + timedelta(milliseconds=sent.answer.duration_ms)
        return Answered(result.status_code, retry_after_seconds(sent.answer.head, at=answered_at))
    return Unreachable(result.reason, was_sent=result.was_sent, is_refused=result.is_refused)


def settlement_of(
    line_id: int,
    delivery: InHand,
    sent: Sent,
    outcome: Outcome,
    verdict: Verdict,
    *,
    again: float | None = None,
    further: Further | None = None,
) -> Settlement:
    """Return what is recorded of the request; `again` is given where it was the last of its group's cycle."""
    result, decision = sent.answer.result, verdict.decision
    body = result.content if isinstance(result, requests.Response) else b""
    return Settlement(
        line_id=line_id,
        delivery_id=delivery.id,
        status=decision.final_status or DeliveryStatus.PENDING,
        pause=None if decision in HOLDING else verdict.pause,
        uncertain=isinstance(outcome, Unreachable) and outcome.was_sent,
        unsent=_gives_number_back(delivery, outcome, decision),
        reason="" if decision is Decision.DELIVERED else _reason(outcome, verdict),
        started_at=sent.started_at,
        duration_ms=sent.answer.duration_ms,
        status_code=outcome.status if isinstance(outcome, Answered) else None,
        answer_headers=_shown(sent.answer.head, delivery, most=KEPT_HEADER_BYTES),
        answer_excerpt=_shown(body, delivery, most=KEPT_BODY_BYTES),
        group_id=delivery.group_id,
        again=again,
        further=further,
    )


def _shown(answer: bytes, delivery: InHand, *, most: int) -> bytes:
    return delivery.destination.without_secrets(without_token(answer, delivery.callback_url), most=most)


def _reason(outcome: Outcome, verdict: Verdict) -> str:
    if not verdict.is_used_up:
        return str(outcome)
    return f"{SUSPENDED if verdict.decision is Decision.SUSPEND else USED_UP}{outcome}"


def _gives_number_back(delivery: InHand, outcome: Outcome, decision: Decision) -> bool:
    """Tell whether the delivery has never been sent, so that no number goes missing if it never is (4.10).

    What is retried apart keeps its number: only the main line gives any.
    """
    if decision is Decision.RETRY_LANE:
        return False
    return delivery.sequence is None and isinstance(outcome, Unreachable) and not outcome.was_sent
