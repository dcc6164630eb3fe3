"""What receivers do instead of answering: reset, drip, send without end, send bytes late."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

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


def sender_of(writer: asyncio.StreamWriter) -> int:
    """Return the process at the other end of a connection on this machine."""
    ends = [writer.get_extra_info(name) for name in ("peername", "sockname")]  # one end may have several connections
    connection = [f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}" for host, port in ends]
    entries = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
    (inode,) = {entry[9] for entry in entries if entry[1:3] == connection} - {"0"}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):  # so has this
                    if str(descriptor.readlink()) == f"socket:[{inode}]":
                        return int(process.name)
    raise LookupError(f"nobody has the connection between {ends}")


def noting(note: Callable[[int], object], then: Behaviour) -> Behaviour:
    """Behave like `then`, and note the process that has sent the request."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        note(sender_of(writer))
        return await then(reader, writer)

    return behave


def signalling(number: signal.Signals) -> Behaviour:
    """Send the process that has sent the request a signal, and close without an answer."""

    async def signal_sender(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        sender = sender_of(writer)
        assert sender != os.getpid(), "the test itself has sent it"
        os.kill(sender, number)
        return False

    return signal_sender


kill_sender = signalling(signal.SIGKILL)
"""As a request does that makes the process crash."""
stop_sender = signalling(signal.SIGSTOP)
"""As a request does with which the process hangs."""
