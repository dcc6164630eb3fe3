"""An endpoint that refuses events as often as it is told to, before it takes them."""

from collections import Counter
from collections.abc import Callable

from tests.faults.endpoints import Endpoint
from tests.receiver import Receiver


class Refusing(Endpoint):
    """Answers so many requests for an event otherwise than 200, whether anybody is left to hear it or not."""

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

    def _status(self, number: int) -> int:
        if self._refused[number] < self._times(number):
            self._refused[number] += 1
            return self._refusal(number)
        return super()._status(number)
