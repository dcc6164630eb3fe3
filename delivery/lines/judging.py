"""From an answer to what is settled: outcome, attempt, status."""

from datetime import timedelta
from typing import Final

import requests

from delivery.callbacks.tokens import without_token
from delivery.http.retry_after import retry_after_seconds
from delivery.lines.hands import InHand
from delivery.lines.steps import Sent
from delivery.rules.outcomes import Answered, Decision, Outcome, Unreachable
from delivery.rules.statuses import DeliveryStatus
from delivery.settling.settlements import Settlement

KEPT_HEADER_BYTES: Final = 2048
KEPT_BODY_BYTES: Final = 1024


def outcome_of(sent: Sent) -> Outcome:
    """Return what happened to the request."""
    result = sent.answer.result
    if isinstance(result, requests.Response):
        answered_at = sent.started_at + timedelta(milliseconds=sent.answer.duration_ms)
        return Answered(result.status_code, retry_after_seconds(sent.answer.head, at=answered_at))
    return Unreachable(result.reason, was_sent=result.was_sent)


def settlement_of(
    line_id: int,
    delivery: InHand,
    sent: Sent,
    outcome: Outcome,
    decision: Decision,
    *,
    pause: float | None = None,
    again: float | None = None,
) -> Settlement:
    """Return what is recorded of the request.

    `pause` is given where the delivery is set aside, `again` where it was the last of its group's cycle.
    """
    result = sent.answer.result
    body = result.content if isinstance(result, requests.Response) else b""
    return Settlement(
        line_id=line_id,
        delivery_id=delivery.id,
        status=decision.final_status or DeliveryStatus.PENDING,
        pause=pause,
        uncertain=isinstance(outcome, Unreachable) and outcome.was_sent,
        unsent=gives_number_back(delivery, outcome),
        reason="" if decision is Decision.DELIVERED else str(outcome),
        started_at=sent.started_at,
        duration_ms=sent.answer.duration_ms,
        status_code=outcome.status if isinstance(outcome, Answered) else None,
        answer_headers=without_token(sent.answer.head, delivery.callback_url)[:KEPT_HEADER_BYTES],
        answer_excerpt=without_token(body, delivery.callback_url)[:KEPT_BODY_BYTES],
        group_id=delivery.group_id,
        again=again,
    )


def gives_number_back(delivery: InHand, outcome: Outcome) -> bool:
    """Tell whether the delivery has never been sent, so that no number goes missing if it never is (4.10)."""
    return delivery.sequence is None and isinstance(outcome, Unreachable) and not outcome.was_sent
