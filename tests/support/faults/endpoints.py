"""Endpoints that record what they get, refuse, or belong to a retry line."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable

from broker_project.stack.load.receiver import Received, Receiver, answer
from subscriptions.retry_policies import ACTIONS, Action
from tests.support.faults.exchanges import Exchange

ANSWER_SECONDS = 0.003
"""How long an endpoint takes: a worker that is killed is then nearly always waiting for an answer."""
NO_NUMBER = 0
"""Events and what is sent of them are numbered from 1 on."""
SLOW_EVERY = 20
SLOW_SECONDS = 0.05

RETRIES = 3


def body_of(number: int) -> bytes:
    """Return an event's body, odd enough to tell whether anybody wrote it anew."""
    return f'{{ "number":{number}, "size":1.50, "size":"{"x" * (number % 700)}" }}'.encode()


def number_in(body: bytes) -> int:
    """Return the number of the event with this body; that of no event if it cannot be read."""
    try:
        number = json.loads(body)["number"]
    except (ValueError, TypeError, KeyError):
        return NO_NUMBER
    return number if isinstance(number, int) else NO_NUMBER


class Endpoint:
    """One subscriber's application: answers after a moment as it is told, and writes everything down."""

    def __init__(self, name: str, receiver: Receiver, *, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.exchanges: list[Exchange] = []
        self.is_busy = False
        """Whether it answers 503."""
        self.is_slow = False
        """Whether it takes much longer for every twentieth event."""
        self.is_stuck = False
        """Whether it lets every request wait until it is no longer so."""
        self.answer_seconds = ANSWER_SECONDS
        self.name = name
        self._receiver = receiver
        self._fails = fails
        self._failed: set[int] = set()
        receiver.on(f"/{name}", self)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        exchange = self._noted(self._receiver.log[-1])  # it is logged right before we are asked
        self.exchanges.append(exchange)
        is_late = self.is_slow and exchange.number % SLOW_EVERY == 0
        await asyncio.sleep(SLOW_SECONDS if is_late else self.answer_seconds)
        while self.is_stuck:
            await asyncio.sleep(ANSWER_SECONDS)
        exchange.status = self._status(exchange.number)
        exchange.hung_up = reader.at_eof()
        exchange.answered_at = time.monotonic()
        return await answer(exchange.status, Retry_After="1")(reader, writer)

    def has_one_under_way(self) -> bool:
        return bool(self.exchanges) and self.exchanges[-1].status is None

    def accepted(self) -> set[int]:
        return {one.number for one in self.exchanges if one.status == 200}

    def _noted(self, request: Received) -> Exchange:
        """Return what is written down of a request."""
        return exchange_of(request)

    def _status(self, number: int) -> int:
        if self.is_busy:
            return 503
        if self._fails(number) and number not in self._failed:
            self._failed.add(number)
            return 500
        return 200


def exchange_of(request: Received) -> Exchange:
    """Return what an endpoint writes down of a request."""
    number = number_in(request.body)
    sequence = request.headers.get("webhook-sequence", "")
    return Exchange(
        number=number,
        webhook_id=request.headers.get("webhook-id", ""),
        sequence=int(sequence) if sequence.isdecimal() else NO_NUMBER,
        flagged=request.is_flagged,
        altered=request.body != body_of(number),
        at=request.begun,
        message_id=int(request.headers.get("broker-message-id", "0")),
        attempt=int(request.headers.get("webhook-attempt", "1")),
    )


class RefusingEndpoint(Endpoint):
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
