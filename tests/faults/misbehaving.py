"""An endpoint that does something else than answering as long as it is told to, and writes that down too."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.faults.endpoints import Endpoint, exchange_of
from tests.faults.exchanges import Exchange
from tests.faults.load import Load
from tests.receiver import Behaviour, Receiver


@dataclass(frozen=True, slots=True)
class Trick:
    """What an endpoint does instead of answering."""

    behaviour: Behaviour
    status: int | None = None
    """What that is as an answer; None: it is none."""


def every_event(_number: int) -> bool:
    return True


class Misbehaving(Endpoint):
    """Answers 200, but for the time between `misbehave` and `heal`."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        super().__init__(name, receiver)
        self.tricked: list[Exchange] = []
        """The requests that got no proper answer."""
        self._trick: Trick | None = None
        self._is_for: Callable[[int], bool] = every_event
        self._healed = asyncio.Event()

    def misbehave(self, trick: Trick, *, on: Callable[[int], bool] = every_event) -> None:
        """Do this from now on with requests for the events that `on` names."""
        self._trick, self._is_for = trick, on

    def heal(self) -> None:
        """Drop what is under way, as a restart would, and answer from now on."""
        self._trick = None
        self._receiver.soon(self._healed.set)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        exchange, trick = exchange_of(self._receiver.log[-1]), self._trick
        if not trick or not self._is_for(exchange.number):
            return await super().__call__(reader, writer)
        exchange.status = trick.status
        self.exchanges.append(exchange)
        self.tricked.append(exchange)
        return await self._until_healed(trick.behaviour(reader, writer))

    async def _until_healed(self, trick: Awaitable[bool]) -> bool:
        doing, healed = asyncio.ensure_future(trick), asyncio.ensure_future(self._healed.wait())
        try:
            await asyncio.wait({doing, healed}, return_when=asyncio.FIRST_COMPLETED)
            return doing.done() and doing.result()
        finally:
            doing.cancel()
            healed.cancel()


def misbehaving(load: Load, name: str, receiver: Receiver | None = None) -> Misbehaving:
    """Add a subscriber to the load whose endpoint can misbehave, on a receiver of its own if need be."""
    receiver = receiver or load.receiver
    endpoint = Misbehaving(name, receiver)
    load.endpoints[load.broker.subscribe(receiver.url(f"/{name}"), *load.event_types)] = endpoint
    return endpoint
