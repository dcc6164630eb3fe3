"""CPU time and memory of whole process trees, read from /proc."""

import contextlib
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

from broker_project.core.subprocesses import die_with

TICK: Final = 1 / os.sysconf("SC_CLK_TCK")

CONTEXT: Final = multiprocessing.get_context("spawn")
END_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process and all its descendants have used."""

    cpu_seconds: float
    """Of those that ended meanwhile too."""
    pss_bytes: int
    """Memory, that which is shared by several counted in parts."""


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    cpu_seconds: float


def busy_seconds() -> float:
    """Return the CPU time that the whole machine has used, for whatever it was."""
    user, nice, system, _idle, _waiting, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft) * TICK


def cpu_seconds(roots: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU time of each tree, by name of its root."""
    children = _by_parent()
    return {name: sum(each.cpu_seconds for each in _tree(root, children)) for name, root in roots.items()}


def usage(roots: Mapping[str, int]) -> dict[str, Usage]:
    """Return CPU time and memory of each tree, by name of its root; reading memory costs some ms a process."""
    children = _by_parent()
    trees = {name: list(_tree(root, children)) for name, root in roots.items()}
    return {
        name: Usage(sum(each.cpu_seconds for each in tree), sum(_pss(each.pid) for each in tree))
        for name, tree in trees.items()
    }


def _by_parent() -> dict[int, list[_Process]]:
    """Return all processes of the machine by their parent; each also under its own negative number."""
    found: dict[int, list[_Process]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            process = _read(int(folder.name), (folder / "stat").read_text())
            found[process.parent].append(process)
            found[-process.pid].append(process)
    return found


def _read(pid: int, status: str) -> _Process:
    """Read /proc/PID/stat: the times of a process include those of the children it has collected."""
    fields = status.rpartition(")")[2].split()
    return _Process(pid, int(fields[1]), sum(map(int, fields[11:15])) * TICK)


def _tree(root: int, children: Mapping[int, list[_Process]]) -> Iterator[_Process]:
    yield from children.get(-root, [])
    for child in children.get(root, []):
        yield from _tree(child.pid, children)


def _pss(pid: int) -> int:
    """Return a process's share of the memory; 0 if it has just ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def shared(kind: Any, value: object) -> Any:
    """Return a C value that the processes it is given to share with us."""
    return CONTEXT.RawValue(kind, value)


@contextlib.contextmanager
def spawned(target: Callable[..., None], *arguments: object) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run a function in a process of its own until we are done with it; it ends when its connection is closed."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_be, args=(os.getpid(), target, theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        ours.close()
        process.join(END_SECONDS)
        process.kill()


def _be(parent: int, target: Callable[..., None], *arguments: object) -> None:
    """Live this process's life, but not longer than the one that started it; that one alone heeds Ctrl-C."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know any more
        target(*arguments)
