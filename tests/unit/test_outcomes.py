"""What happened to a request, and what that means (behaviour 4.3 to 4.8)."""

import pytest

from delivery.outcomes import TEAMFORGE, Answered, Decision, Outcome, Unreachable, decide
from delivery.statuses import DeliveryStatus


@pytest.mark.parametrize(
    ("outcome", "decision"),
    [
        (Answered(200), Decision.DELIVERED),
        (Answered(201), Decision.DELIVERED),
        (Answered(299), Decision.DELIVERED),
        (Answered(300), Decision.NOT_SUPPORTED),
        (Answered(301), Decision.NOT_SUPPORTED),
        (Answered(399), Decision.NOT_SUPPORTED),
        (Answered(400), Decision.REJECTED),
        (Answered(408), Decision.REJECTED),
        (Answered(429), Decision.REJECTED),
        (Answered(499), Decision.REJECTED),
        (Answered(500), Decision.DEFER),
        (Answered(502), Decision.DEFER),
        (Answered(503), Decision.HOLD_THE_LINE),
        (Answered(503, retry_after=7.0), Decision.HOLD_THE_LINE),
        (Answered(504), Decision.DEFER),
        (Answered(599), Decision.DEFER),
        (Answered(0), Decision.DEFER),
        (Answered(101), Decision.DEFER),
        (Answered(199), Decision.DEFER),
        (Answered(600), Decision.DEFER),
        (Answered(999), Decision.DEFER),
        (Unreachable("refused"), Decision.HOLD_THE_LINE),
        (Unreachable("timed out", was_sent=True), Decision.HOLD_THE_LINE),
    ],
)
def test_decide(outcome: Outcome, decision: Decision) -> None:
    assert decide(outcome, TEAMFORGE) == decision


@pytest.mark.parametrize(
    ("decision", "status"),
    [
        (Decision.DELIVERED, DeliveryStatus.DELIVERED),
        (Decision.REJECTED, DeliveryStatus.REJECTED),
        (Decision.NOT_SUPPORTED, DeliveryStatus.NOT_SUPPORTED),
        (Decision.DEFER, None),
        (Decision.HOLD_THE_LINE, None),
    ],
)
def test_final_status(decision: Decision, status: DeliveryStatus | None) -> None:
    assert decision.final_status == status


@pytest.mark.parametrize(
    ("outcome", "text"), [(Answered(404), "answered 404"), (Unreachable("refused"), "no answer: refused")]
)
def test_an_outcome_says_what_happened(outcome: Outcome, text: str) -> None:
    assert str(outcome) == text
