"""An HTTP receiver on loopback, scripted for each path.

It logs every request in the order of arrival, and how many requests of a path were in flight at the same time.
"""

import asyncio
import contextlib
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from broker_project.stack.load.wait import PATIENCE_SECONDS
from broker_project.stack.ports import LOOPBACK

T = TypeVar("T")
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""What to do with a request that has been read. It returns whether the connection may be used again."""


@dataclass(slots=True, eq=False)
class Received:
    """One request as it arrived; times are on the monotonic clock."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes
    begun: float
    ended: float | None = None
    """None: still in flight."""

    @property
    def delivery_id(self) -> int:
        """The delivery's number in `webhook-id`."""
        return int(self.headers["webhook-id"].removeprefix("dlv_"))

    @property
    def sequence(self) -> int:
        """The number in `webhook-sequence`."""
        return int(self.headers["webhook-sequence"])

    @property
    def is_flagged(self) -> bool:
        """Whether the request says that it may be a duplicate."""
        return self.headers.get("webhook-possible-duplicate") == "true"


def answer(status: int = 200, body: bytes = b"", reason: bytes = b"-", **headers: str) -> Behaviour:
    """Answer completely. `Retry_After="3"` is sent as `Retry-After: 3`."""
    lines = [f"{name.replace('_', '-')}: {value}".encode() for name, value in headers.items()]
    head = b"\r\n".join([b"HTTP/1.1 %d %s" % (status, reason), b"Content-Length: %d" % len(body), *lines])
    return raw(head + b"\r\n\r\n" + body, keep=True)


def raw(data: bytes, *, keep: bool = False) -> Behaviour:
    """Send these bytes, and close the connection unless `keep`."""

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keep

    return send


async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Never answer: wait until the other side gives up."""
    await reader.read()
    return False


class Gate:
    """Holds requests until it is opened, then answers them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Behaviour) -> None:
        self._loop = loop
        self._then = then
        self._opened = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Wait, then answer."""
        await self._opened.wait()
        return await self._then(reader, writer)

    def open(self) -> None:
        """Answer what waits and what follows; any thread may call it."""
        self._loop.call_soon_threadsafe(self._opened.set)


class Receiver(threading.Thread):
    """A server in its own thread. Paths without a script are answered 200."""

    def __init__(self) -> None:
        super().__init__(name="receiver", daemon=True)
        self.log: list[Received] = []
        self.max_at_once: Counter[str] = Counter()
        """By path."""
        self._at_once: Counter[str] = Counter()
        self._scripts: dict[str, list[Behaviour]] = defaultdict(lambda: [answer()])
        """What each path does, request after request; the last behaviour repeats."""
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._reservation = socket.socket()
        """Bound to the port all the time, so that no other program gets it while the receiver is closed."""
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reservation.bind((LOOPBACK, 0))
        self._port: int = self._reservation.getsockname()[1]
        self._connections: set[asyncio.Task[None]] = set()
        self.start()
        self.open_port()

    def run(self) -> None:
        """Serve until `stop`."""
        self._loop.run_forever()
        self._loop.close()

    def url(self, path: str = "/") -> str:
        """Return the address of a path."""
        return f"http://{LOOPBACK}:{self._port}{path}"

    def on(self, path: str, *behaviours: Behaviour) -> None:
        """Treat the next requests to `path` like this, and all later ones like the last."""
        self._scripts[path] = [*behaviours]

    def gate(self, path: str, then: Behaviour | None = None, *afterwards: Behaviour) -> Gate:
        """Hold the next request to `path` at a gate; later ones follow `afterwards`, or `then`."""
        then = then or answer()
        gate = Gate(self._loop, then)
        self.on(path, gate, *(afterwards or (then,)))
        return gate

    def soon(self, act: Callable[[], object]) -> None:
        """Run this next in the receiver's own thread."""
        self._loop.call_soon_threadsafe(act)

    def close_port(self) -> None:
        """Refuse new connections and drop those that are open."""
        self._call(self._close())

    def open_port(self) -> None:
        """Listen, on the same port as before `close_port`."""
        listening = asyncio.start_server(self._serve, LOOPBACK, self._port, backlog=1024, reuse_address=True)
        self._server = self._call(listening)

    def stop(self) -> None:
        """Close everything and end the thread."""
        self.close_port()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()
        self._reservation.close()

    def of(self, path: str) -> list[Received]:
        """Return the requests to a path in the order of arrival."""
        return [request for request in self.log if request.path == path]

    def bodies(self, path: str) -> list[bytes]:
        """Return the bodies of these requests."""
        return [request.body for request in self.of(path)]

    def _call(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(PATIENCE_SECONDS)

    async def _close(self) -> None:
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._connections.add(task)
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        request = await _read(reader)
        self.log.append(request)
        self._at_once[request.path] += 1
        self.max_at_once[request.path] = max(self.max_at_once[request.path], self._at_once[request.path])
        script = self._scripts[request.path]
        try:
            return await (script.pop(0) if len(script) > 1 else script[0])(reader, writer)
        finally:
            self._at_once[request.path] -= 1
            request.ended = time.monotonic()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method, path, headers, body, time.monotonic())


@contextlib.contextmanager
def running_receiver() -> Iterator[Receiver]:
    """Run a receiver and stop it at the end."""
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.stop()
