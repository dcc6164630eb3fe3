"""Endpoints that record every exchange, those that refuse some events, and the policy of the retry lane."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from broker_project.stack.load.exchanges import Exchange, is_accepted, number_in
from broker_project.stack.load.receiver import Received, Receiver, answer, hang
from subscriptions.retry_policies import ACTIONS, Action
from tests.support.real_broker import Broker

RETRIES = 6
"""A try that a fault has cut off counts as one of them."""
ANSWER_SECONDS: Final = 0.003
"""How long an endpoint takes: a worker that is killed is then nearly always waiting for an answer."""
SLOW_EVERY: Final = 20
KEYS: Final = 5
SLOW_SECONDS: Final = 0.05
ANSWERS: Final = """
    SELECT attempt.answer_excerpt FROM delivery_attempt attempt JOIN delivery_delivery delivery
        ON delivery.id = attempt.delivery_id WHERE delivery.message_id = ANY(%(messages)s)
"""


def body_of(number: int) -> bytes:
    """Return an event's body, whose odd formatting shows whether anything re-encoded it."""
    return f'{{ "number":{number}, "key":"{key_of(number)}", "size":1.50, "size":"{"x" * (number % 700)}" }}'.encode()


def key_of(number: int) -> str:
    """Return the ordering key of an event."""
    return f"key {number % KEYS}"


class Endpoint:
    """One subscriber's application on a shared receiver: answers after a moment and records every exchange."""

    def __init__(
        self, name: str, receiver: Receiver, *paths: str, fails: Callable[[int], bool] = lambda _: False
    ) -> None:
        self.exchanges: list[Exchange] = []
        self.is_busy = False
        """Whether it answers 503."""
        self.is_slow = False
        """Whether it takes much longer for every twentieth event."""
        self.is_stuck = False
        """Whether it holds every request until this is False again."""
        self.answer_seconds = ANSWER_SECONDS
        self.name = name
        self._receiver = receiver
        self._fails = fails
        self._failed: set[int] = set()
        for path in paths or (f"/{name}",):
            receiver.on(path, self)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Record the request that was just read, wait, and answer it."""
        exchange = self.record(self._receiver.log[-1])  # logged right before this call
        self.exchanges.append(exchange)
        is_late = self.is_slow and exchange.number % SLOW_EVERY == 0
        await asyncio.sleep(SLOW_SECONDS if is_late else self.answer_seconds)
        while self.is_stuck:
            await asyncio.sleep(ANSWER_SECONDS)
        status = self.status_for(exchange.number)
        if status is None:
            return await hang(reader, writer)
        exchange.status = status
        exchange.hung_up = reader.at_eof()
        exchange.answered_at = time.monotonic()
        return await answer(status, name_of(exchange), Retry_After="1")(reader, writer)

    def has_one_in_flight(self) -> bool:
        """Return whether the last request has no answer yet."""
        return bool(self.exchanges) and self.exchanges[-1].status is None

    def accepted(self) -> set[int]:
        """Return the numbers of the events that it answered 2xx."""
        return {one.number for one in self.exchanges if is_accepted(one.status)}

    def record(self, request: Received) -> Exchange:
        """Return what to record of a request."""
        return exchange_of(request, self.name)

    def status_for(self, number: int) -> int | None:
        """Return the status of the next answer for an event; None: never answer."""
        if self.is_busy:
            return 503
        if self._fails(number) and number not in self._failed:
            self._failed.add(number)
            return 500
        return 200


def name_of(exchange: Exchange) -> bytes:
    """Return what tells an answer from all others, and is its body: the broker keeps the beginning of each."""
    return f"{exchange.endpoint} {exchange.at}".encode()


def note_stored(broker: Broker, endpoints: Iterable[Endpoint]) -> None:
    """Note which answers the broker has stored, of the requests that came more than once."""
    exchanges = [one for endpoint in endpoints for one in endpoint.exchanges]
    times = Counter(one.webhook_id for one in exchanges)
    repeated = [one for one in exchanges if times[one.webhook_id] > 1]
    stored = {bytes(answer) for (answer,) in broker.ask(ANSWERS, messages=[one.message_id for one in repeated])}
    for one in repeated:
        one.is_stored = name_of(one) in stored


def exchange_of(request: Received, endpoint: str = "") -> Exchange:
    """Return the record of a request whose event should have the body `body_of` its number."""
    return Exchange.of(request, endpoint, altered=request.body != body_of(number_in(request.body)))


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
