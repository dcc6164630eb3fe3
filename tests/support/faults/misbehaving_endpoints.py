"""Endpoints that hang, drip, reset or answer nonsense for as long as a test wants."""

import asyncio
import gzip
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from broker_project.stack.load.exchanges import Exchange
from broker_project.stack.load.receiver import Behaviour, Receiver, answer, hang, raw
from tests.support.behaviours import close, dripping, endless, reset
from tests.support.faults.endpoints import Endpoint, exchange_of
from tests.support.faults.load import Load

HEAD = b"HTTP/1.1 200 OK\r\n"
MANY_HEADERS = HEAD + b"".join(b"X-%d: a\r\n" % number for number in range(1_000))
BOMB = gzip.compress(bytes(2**24)) * 256
"""4 MiB that inflate to 4 GiB."""


@dataclass(frozen=True, slots=True)
class Misbehaviour:
    """What an endpoint does instead of answering."""

    behaviour: Behaviour
    status: int | None = None
    """Status of the answer; None: no valid answer."""


def every_event(_number: int) -> bool:
    return True


class MisbehavingEndpoint(Endpoint):
    """Answers 200, but for the time between `misbehave` and `heal`."""

    def __init__(self, name: str, receiver: Receiver) -> None:
        super().__init__(name, receiver)
        self.misbehaved: list[Exchange] = []
        """The requests that got no proper answer."""
        self._misbehaviour: Misbehaviour | None = None
        self._is_for: Callable[[int], bool] = every_event
        self._healed = asyncio.Event()

    def misbehave(self, misbehaviour: Misbehaviour, *, on: Callable[[int], bool] = every_event) -> None:
        """Do this from now on with requests for the events that `on` names."""
        self._misbehaviour, self._is_for = misbehaviour, on

    def heal(self) -> None:
        """Drop what is under way, as a restart would, and answer from now on."""
        self._misbehaviour = None
        self._receiver.soon(self._healed.set)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        exchange, misbehaviour = exchange_of(self._receiver.log[-1]), self._misbehaviour
        if not misbehaviour or not self._is_for(exchange.number):
            return await super().__call__(reader, writer)
        exchange.status = misbehaviour.status
        self.exchanges.append(exchange)
        self.misbehaved.append(exchange)
        return await self._until_healed(misbehaviour.behaviour(reader, writer))

    async def _until_healed(self, misbehaviour: Awaitable[bool]) -> bool:
        doing, healed = asyncio.ensure_future(misbehaviour), asyncio.ensure_future(self._healed.wait())
        try:
            await asyncio.wait({doing, healed}, return_when=asyncio.FIRST_COMPLETED)
            return doing.done() and doing.result()
        finally:
            doing.cancel()
            healed.cancel()


def misbehaving_endpoint(load: Load, name: str, receiver: Receiver | None = None) -> MisbehavingEndpoint:
    """Add a subscriber to the load whose endpoint can misbehave, on a receiver of its own if need be."""
    receiver = receiver or load.receiver
    endpoint = MisbehavingEndpoint(name, receiver)
    load.endpoints[load.broker.subscribe(receiver.url(f"/{name}"), *load.event_types)] = endpoint
    return endpoint


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to misbehave, how often it is met, and whether only the deadline ends it."""

    misbehaviour: Misbehaviour
    requests: int
    lasts: bool = False


SINGLE = {
    "hangs": Kind(Misbehaviour(hang), 2, lasts=True),
    "drips": Kind(Misbehaviour(dripping(1.0)), 2, lasts=True),
    "closes": Kind(Misbehaviour(close), 3),
    "resets-after-processing": Kind(Misbehaviour(reset), 3),
    "sends-without-end": Kind(Misbehaviour(endless, 200), 30),
    "sends-a-compressed-bomb": Kind(Misbehaviour(raw(HEAD + b"Content-Encoding: gzip\r\n\r\n" + BOMB), 200), 30),
}
"""One at a time, beside others that answer."""

GARBAGE = {
    "zero-bytes": Misbehaviour(raw(b"\x00" * 100)),
    "zero-bytes-in-the-body": Misbehaviour(answer(200, b"a\x00b" * 100), 200),
    "zero-bytes-in-a-header": Misbehaviour(raw(HEAD + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n")),
    "no-text-in-the-body": Misbehaviour(answer(200, b"\xff\xfe\x00\xc3\x28"), 200),
    "no-text-in-a-header": Misbehaviour(raw(HEAD + b"X: \xff\xfe\xc3\x28\r\nContent-Length: 0\r\n\r\n"), 200),
    "status-0": Misbehaviour(raw(b"HTTP/1.1 000 -\r\nContent-Length: 0\r\n\r\n")),
    "status-999": Misbehaviour(answer(999), 999),
    "status-1000": Misbehaviour(raw(b"HTTP/1.1 1000 -\r\nContent-Length: 0\r\n\r\n")),
    "status-2000": Misbehaviour(raw(b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n")),
    "a-reason-of-100-KB": Misbehaviour(raw(b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\nContent-Length: 0\r\n\r\n")),
    "a-thousand-headers": Misbehaviour(raw(MANY_HEADERS + b"Content-Length: 0\r\n\r\n", keep=True), 200),
    "half-a-chunk": Misbehaviour(raw(HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\nhalf")),
    "http-0.9": Misbehaviour(raw(b"<html>It by_kind!</html>")),
}
"""All at the same time."""
