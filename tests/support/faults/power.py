"""Loss of power below PostgreSQL: what its files were not synced with is gone, or some blocks of it."""

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

import pytest

from tests.support.faults.breakage import data_of, freeze, with_environment
from tests.support.real_broker import Broker

SOURCE: Final = Path(__file__).with_name("unsynced_writes.c")
REPLACED: Final = struct.Struct("qqqq")
"""Begins an entry of a log: offset and count of what was written, count of the old bytes that follow, old size."""
BLOCK: Final = 4096
"""What a disk writes wholly or not at all."""


def compiled(source: Path, folder: Path) -> Path:
    """Return the library made from this source, to be preloaded into a process; skip the case without a compiler."""
    compiler = shutil.which("gcc")
    if not compiler:
        pytest.skip("gcc, which compiles what is preloaded into a process, is not installed")
    library = folder / source.with_suffix(".so").name
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


@dataclass(frozen=True, slots=True)
class Power:
    """The power of the machine that PostgreSQL runs on."""

    broker: Broker
    logs: Path
    dice: Random

    def lose(self) -> None:
        """End PostgreSQL in the middle of what it does, undo what it has not synced, and start it again."""
        server = self.broker.stack.supervisor["postgres"]
        processes = freeze(server)
        server.stop(signal.SIGKILL)
        for process in processes[1:]:
            os.kill(process, signal.SIGKILL)
        files = {path.lstat().st_ino: path for path in data_of(self.broker).rglob("*") if path.is_file()}
        for log in self.logs.iterdir():
            undo(log, files, self.dice)
        server.start()
        server.wait_until_ready()


def undo(log: Path, files: Mapping[int, Path], dice: Random) -> None:
    """Undo the writes in the log of a file, from the last to the first; of half the files, only in some blocks."""
    entries, is_partial, reached = [*_entries(log.read_bytes())], dice.random() < 0.5, set[int]()
    log.unlink()
    if entries:
        with files[int(log.name)].open("r+b") as file:
            for offset, count, bytes_before, size in reversed(entries):
                for start in range(offset - offset % BLOCK, offset + count, BLOCK):
                    if start in reached or (is_partial and dice.random() < 0.5):
                        reached.add(start)
                        continue
                    first, end = max(start, offset), min(start + BLOCK, offset + count)
                    file.seek(first)
                    file.write(bytes_before[first - offset : end - offset].ljust(end - first, b"\0"))
                if not is_partial:
                    file.truncate(size)


def _entries(log: bytes) -> Iterator[tuple[int, int, bytes, int]]:
    """Yield the complete entries: without all of it, what comes after it was not written."""
    place = 0
    while place + REPLACED.size <= len(log):
        offset, count, kept, size = REPLACED.unpack_from(log, place)
        place += REPLACED.size + kept
        if place <= len(log):
            yield offset, count, log[place - kept : place], size


@contextmanager
def power_of(broker: Broker, folder: Path, dice: Random) -> Iterator[Power]:
    """Give the power of PostgreSQL's machine, which can be lost inside."""
    library, logs = compiled(SOURCE, folder), folder / "unsynced"
    logs.mkdir()
    variables = {"UNSYNCED_DATA": os.path.realpath(data_of(broker)), "UNSYNCED_LOGS": str(logs)}
    with with_environment([broker.stack.supervisor["postgres"]], LD_PRELOAD=str(library), **variables):
        yield Power(broker, logs, dice)
