"""A real HTTP receiver on loopback that answers, waits, drips, resets or talks nonsense, path by path, as it is told.

It logs every request in the order of arrival, and how many requests of one path were under way at the same time.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field

LOOPBACK = "127.0.0.1"
PATIENCE_SECONDS = 60.0
"""Seconds to wait for what must come in the end, however busy the machine is: it costs nothing where it comes."""
RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
"""What to do with a request that has been read; whether the connection may be used again."""


@dataclass(slots=True, eq=False)
class Received:
    """One request as it came; times are monotonic."""

    method: str
    path: str
    headers: Mapping[str, str]
    """By name in lower case."""
    body: bytes
    begun: float
    ended: float | None = None
    """None: still under way."""

    @property
    def delivery_id(self) -> int:
        return int(self.headers["webhook-id"].removeprefix("dlv_"))

    @property
    def sequence(self) -> int:
        return int(self.headers["webhook-sequence"])

    @property
    def is_flagged(self) -> bool:
        return self.headers.get("webhook-possible-duplicate") == "true"


def answer(status: int = 200, body: bytes = b"", reason: bytes = b"-", **headers: str) -> Behaviour:
    """Answer completely; `Retry_After="3"` is sent as `Retry-After: 3`."""
    lines = [f"{name.replace('_', '-')}: {value}".encode() for name, value in headers.items()]
    head = b"\r\n".join([b"HTTP/1.1 %d %s" % (status, reason), b"Content-Length: %d" % len(body), *lines])
    return raw(head + b"\r\n\r\n" + body, keep=True)


def raw(data: bytes, *, keep: bool = False) -> Behaviour:
    """Send these bytes, whatever they are, and close unless `keep`."""

    async def send(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keep

    return send


class LateBytes:
    """Answers, and says more on the same connection when it is told to, though nobody has asked."""

    def __init__(self, first: bytes, more: bytes, *, then_close: bool = False) -> None:
        self._first, self._more, self._then_close = first, more, then_close
        self._writer: asyncio.StreamWriter | None = None
        self.has_said = threading.Event()

    async def __call__(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer."""
        self._writer = writer
        writer.write(self._first)
        await writer.drain()
        return True

    def say(self) -> None:
        """Say more; to be called in the receiver's loop."""
        assert self._writer
        self._writer.write(self._more)
        if self._then_close:
            self._writer.close()
        self.has_said.set()


async def hang(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Never answer: wait until the other side gives up."""
    await reader.read()
    return False


async def close(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Read the request and close without a word."""
    return False


async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read the request and reset the connection."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    return False


def dripping(every: float) -> Behaviour:
    """Answer 200 and then send a byte every so many seconds, for ever."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not reader.at_eof():
            writer.write(b".")
            await writer.drain()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(), every)
        return False

    return drip


async def endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer 200 with a body that does not end."""
    writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


class Gate:
    """Keeps requests waiting until it is opened, then lets them be answered."""

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Behaviour) -> None:
        self._loop = loop
        self._then = then
        self._opened = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await self._opened.wait()
        return await self._then(reader, writer)

    def open(self) -> None:
        """May be called from any thread."""
        self._loop.call_soon_threadsafe(self._opened.set)


@dataclass(slots=True)
class _Script:
    """What a path does, request after request; the last goes on for ever."""

    behaviours: list[Behaviour] = field(default_factory=list)

    def next(self) -> Behaviour:
        return self.behaviours.pop(0) if len(self.behaviours) > 1 else self.behaviours[0]


class Receiver(threading.Thread):
    """A server in a thread of its own; what is not scripted is answered 200."""

    def __init__(self) -> None:
        super().__init__(name="receiver", daemon=True)
        self.log: list[Received] = []
        self.max_at_once: Counter[str] = Counter()
        """By path."""
        self._at_once: Counter[str] = Counter()
        self._scripts: dict[str, _Script] = defaultdict(lambda: _Script([answer()]))
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._place = socket.socket()
        """Bound to the port all the time, so that nobody else gets it while nobody listens there."""
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind((LOOPBACK, 0))
        self._port: int = self._place.getsockname()[1]
        self._connections: set[asyncio.Task[None]] = set()
        self.start()
        self.open_port()

    def run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    # --- telling it what to do -----------------------------------------------

    def url(self, path: str = "/") -> str:
        return f"http://{LOOPBACK}:{self._port}{path}"

    def on(self, path: str, *behaviours: Behaviour) -> None:
        """Answer the next requests of `path` so, and all later ones as the last."""
        self._scripts[path] = _Script([*behaviours])

    def gate(self, path: str, then: Behaviour | None = None, *afterwards: Behaviour) -> Gate:
        """Let the next request of `path` wait at a gate; later ones behave as `afterwards` says, or as `then`."""
        then = then or answer()
        gate = Gate(self._loop, then)
        self.on(path, gate, *(afterwards or (then,)))
        return gate

    def soon(self, act: Callable[[], object]) -> None:
        """Let the receiver's own thread do this next."""
        self._loop.call_soon_threadsafe(act)

    def close_port(self) -> None:
        """Refuse connections from now on, and drop those there are."""
        self._call(self._close())

    def open_port(self) -> None:
        """Listen; after `close_port`, under the same address as before."""
        self._call(self._listen())

    def stop(self) -> None:
        self.close_port()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.join()
        self._place.close()

    # --- what it saw ---------------------------------------------------------

    def of(self, path: str) -> list[Received]:
        """Return the requests of a path in the order of arrival."""
        return [request for request in self.log if request.path == path]

    def bodies(self, path: str) -> list[bytes]:
        return [request.body for request in self.of(path)]

    # --- inside --------------------------------------------------------------

    def _call(self, action: Awaitable[None]) -> None:
        async def run() -> None:
            await action

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE_SECONDS)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self._port, backlog=1024, reuse_address=True)

    async def _close(self) -> None:
        if self._server:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
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
        try:
            return await self._scripts[request.path].next()(reader, writer)
        finally:
            self._at_once[request.path] -= 1
            request.ended = time.monotonic()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")[:-2]
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
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


def wait_until(
    condition: Callable[[], object], seconds: float = PATIENCE_SECONDS, *, saying: Callable[[], object] = str
) -> None:
    """Wait until the condition holds; fail after `seconds`, with what `saying` returns."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s: {saying()}"
        time.sleep(0.005)
