"""Processes around the broker, and what process trees and servers use, as the kernel counts it."""

import contextlib
import multiprocessing
import os
import signal
import socket
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_int64
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, Final

from broker_project.core.subprocesses import die_with

TICK: Final = 1 / os.sysconf("SC_CLK_TCK")

CONTEXT: Final = multiprocessing.get_context("spawn")
END_SECONDS: Final = 10.0

SOCK_DIAG, BY_FAMILY, TCP_INFO, ESTABLISHED = 4, 20, 2, 1
ASK_FOR_CONNECTIONS: Final = struct.pack(
    "=IHHII BBBBI 48x",
    *(72, BY_FAMILY, 0x301, 0, 0),
    *(socket.AF_INET, socket.IPPROTO_TCP, 1 << TCP_INFO - 1, 0, 1 << ESTABLISHED),
)
"""The header of a message that asks for a dump, and an `inet_diag_req_v2`."""
PORT_AT, ATTRIBUTES_AT, DATA_SEGMENTS_IN_AT = 20, 88, 4 + 152
"""Where `linux/inet_diag.h` and `linux/tcp.h` have them."""


def cpu_by_tree(roots: Mapping[str, int]) -> dict[str, dict[int, float]]:
    """Return the seconds of CPU time of each process by its id, for each root and its descendants."""
    cpu: dict[int, float] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            children[int(fields[1])].append(int(folder.name))
            # With the CPU time of the children that it has waited for.
            cpu[int(folder.name)] = sum(map(int, fields[11:15])) * TICK
    trees = {}
    for name, root in roots.items():
        tree = [root]
        for pid in tree:  # grows meanwhile
            tree += children[pid]
        trees[name] = {pid: cpu[pid] for pid in tree if pid in cpu}
    return trees


def context_switches(pid: int) -> int:
    """Return how often the threads of a process have left a core, on their own or not; 0 if it has just ended."""
    switches = 0
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has just ended
                switches += sum(int(line.split()[1]) for line in (thread / "status").read_text().splitlines()[-2:])
    return switches


def received_segments(port: int) -> int:
    """Return how many TCP segments with data the open IPv4 connections of a server on this machine have received.

    A client that writes up to 32 KB at once sends one. 0 if the kernel does not tell (`man 7 sock_diag`).
    """
    received = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, SOCK_DIAG) as kernel:
        kernel.send(ASK_FOR_CONNECTIONS)
        while True:
            answer = kernel.recv(65_536)
            while answer:
                length, kind = struct.unpack_from("=IH", answer)
                if kind != BY_FAMILY:  # the end, or an error
                    return received
                if struct.unpack_from(">H", answer, PORT_AT) == (port,):
                    received += _data_segments(answer[ATTRIBUTES_AT:length])
                answer = answer[length:]


def _data_segments(attributes: bytes) -> int:
    """Return the segments with data that a connection has received."""
    while attributes:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == TCP_INFO:
            return int(struct.unpack_from("=I", attributes, DATA_SEGMENTS_IN_AT)[0])
        attributes = attributes[length + -length % 4 :]
    return 0


def pss_bytes(pid: int) -> int:
    """Return the proportional set size of a process, in some ms: shared memory counts in parts; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def shared(kind: Any, value: object) -> Any:
    """Return a C value that this process shares with those that it is passed to."""
    return CONTEXT.RawValue(kind, value)


@dataclass(frozen=True, slots=True)
class Receiving:
    """A process that receives what is published, seen from outside."""

    name: ClassVar[str]

    process: BaseProcess
    control: Connection
    count: c_int64
    """How much it has received; other processes read it."""

    @property
    def delivered(self) -> int:
        """How much it has received."""
        return self.count.value

    def ask(self, command: str) -> Any:
        """Send a command and return the answer."""
        self.control.send(command)
        return self.control.recv()


@contextlib.contextmanager
def spawned(target: Callable[..., None], *arguments: object) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run a function in its own process, which ends when its connection is closed."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_run, args=(os.getpid(), target, theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.join(END_SECONDS)
        process.kill()


def _run(parent: int, target: Callable[..., None], *arguments: object) -> None:
    """Run in the new process, which ends with its parent and leaves Ctrl-C to it."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):  # no one reads the result
        target(*arguments)
