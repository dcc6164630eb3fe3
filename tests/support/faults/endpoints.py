"""Endpoints that refuse some events, and the policy and the events of the retry lane."""

import math
from collections import Counter
from collections.abc import Callable

from broker_project.stack.load.endpoint import Endpoint
from broker_project.stack.load.receiver import Receiver
from subscriptions.retry_policies import ACTIONS, Action

RETRIES = 3


class RefusingEndpoint(Endpoint):
    """Refuses the first `times` requests for an event, also those whose client is gone."""

    def __init__(
        self,
        name: str,
        receiver: Receiver,
        *,
        times: Callable[[int], float],
        status: Callable[[int], int] = lambda _: 500,
    ) -> None:
        super().__init__(name, receiver)
        self._times = times
        self._refusal = status
        self._refused: Counter[int] = Counter()

    def status_for(self, number: int) -> int | None:
        if self._refused[number] < self._times(number):
            self._refused[number] += 1
            return self._refusal(number)
        return super().status_for(number)


APART = {
    **dict.fromkeys(ACTIONS, Action.RETRY_LANE),
    "initial_delay_seconds": 1.0,
    "factor": 1.0,
    "max_delay_seconds": 1.0,
    "max_retries": RETRIES,
    "on_exhausted": "FAIL",
}


def is_doomed(number: int) -> bool:
    """Return whether an event is never accepted."""
    return number % 20 == 1


def times_refused(number: int) -> float:
    """Every second event is taken the second or third time."""
    return math.inf if is_doomed(number) else number % 4 if number % 2 == 0 else 0
