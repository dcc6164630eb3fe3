"""Deliveries that are tried again apart: under which policy, and which of them are never taken."""

import math

from subscriptions.retry_policies import ACTIONS, Action

RETRIES = 3
APART = {
    **dict.fromkeys(ACTIONS, Action.RETRY_LANE),
    "initial_delay_seconds": 1.0,
    "factor": 1.0,
    "max_delay_seconds": 1.0,
    "max_retries": RETRIES,
    "on_exhausted": "FAIL",
}


def is_doomed(number: int) -> bool:
    """Say whether an event is never taken."""
    return number % 20 == 1


def times_refused(number: int) -> float:
    """Every second event is taken the second or third time."""
    return math.inf if is_doomed(number) else number % 4 if number % 2 == 0 else 0
