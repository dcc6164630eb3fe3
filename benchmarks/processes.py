"""Processes around the broker, and the CPU time and memory of process trees as /proc has it."""

import contextlib
import multiprocessing
import os
import signal
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


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and all its descendants have used."""

    cpu_seconds: float
    """Including those that have ended."""
    pss_bytes: int
    """Proportional set size: shared memory counts in parts."""


def cpu_seconds(roots: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU time of each tree, by name of its root."""
    return {name: sum(tree.values()) for name, tree in _cpu_by_tree(roots).items()}


def usage(roots: Mapping[str, int]) -> dict[str, Usage]:
    """Return CPU time and memory of each tree, by name of its root; reading memory costs some ms a process."""
    return {
        name: Usage(sum(tree.values()), sum(_pss_bytes(pid) for pid in tree))
        for name, tree in _cpu_by_tree(roots).items()
    }


def _cpu_by_tree(roots: Mapping[str, int]) -> dict[str, dict[int, float]]:
    """Return the CPU time of each process by its id, for each root and its descendants."""
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


def _pss_bytes(pid: int) -> int:
    """Return a process's share of the memory; 0 if it has just ended."""
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
