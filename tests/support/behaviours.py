"""What receivers do instead of answering: reset, drip, send without end, send bytes late."""

import asyncio
import contextlib
import socket
import struct
import threading

from broker_project.stack.load.receiver import Behaviour

RESET_ON_CLOSE = struct.pack("ii", 1, 0)


async def close(_reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    """Read the request and close without an answer."""
    return False


async def reset(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Read the request and reset the connection."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    return False


def dripping(every: float) -> Behaviour:
    """Answer 200 and then send a byte every `every` seconds, for ever."""

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


class LateBytes:
    """Answers, and later sends more bytes on the same connection without a request."""

    def __init__(self, first: bytes, more: bytes, *, then_close: bool = False) -> None:
        self._first, self._more, self._then_close = first, more, then_close
        self._writer: asyncio.StreamWriter | None = None
        self.has_sent = threading.Event()

    async def __call__(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer."""
        self._writer = writer
        writer.write(self._first)
        await writer.drain()
        return True

    def send(self) -> None:
        """Send the rest. Call it in the receiver's loop, after the answer."""
        if self._writer:
            self._writer.write(self._more)
            if self._then_close:
                self._writer.close()
        self.has_sent.set()
