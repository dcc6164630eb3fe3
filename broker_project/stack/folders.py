"""The folder of a stack, the lock on it, and the ports and secrets stored in it."""

import contextlib
import fcntl
import itertools
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django.core.exceptions import ImproperlyConfigured

from broker_project.core.egress import MAX_PORT
from broker_project.core.subprocesses import running_processes
from broker_project.stack.ports import any_free, is_free

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".broker"
"""Everything that is created at run time. Ignored by git; you can delete it while nothing is running."""

SECRET_BYTES = 48
"""64 characters as text; Django wants 50 in a secret key."""
PASSWORD_BYTES = 12
"""Short enough to type."""

GUARD_SECONDS = 20.0
"""How long the guard of a killed stack may take to end its processes."""


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The folder of one stack: `.broker` itself, or one of the demo, a test run or another command."""

    path: Path

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.made("logs")

    @property
    def lock(self) -> Path:
        """Locked while the stack is running; contains its process id."""
        return self.made() / "stack.lock"

    @property
    def settings(self) -> Path:
        """Ports and secrets, chosen once; readable only by the owner."""
        return self.made() / "stack.json"

    def made(self, name: str = "") -> Path:
        """Return a folder in it, created if missing."""
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class StackSettings:
    """The ports and secrets of a stack, in a JSON file that is written whenever a value is chosen."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._values: dict[str, str] = {}
        self._read()

    @property
    def folder(self) -> Path:
        """The folder of the file, which is the folder of the stack."""
        return self._path.parent

    def secret(self, name: str, size: int = SECRET_BYTES) -> str:
        """Return the random secret of this name."""
        return self._values.get(name) or self.store(name, secrets.token_urlsafe(size))

    def store(self, name: str, value: str) -> str:
        """Store a value and return it, once it is on disk: what is encrypted with a secret must not outlive that."""
        self._read()  # another object may have stored something meanwhile
        if self._values.get(name) != value:
            self._values[name] = value
            new = self._path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(json.dumps(self._values, indent=1))
            _sync(new)
            new.replace(self._path)
            _sync(self.folder)
        return value

    def stored(self, name: str) -> str:
        """Return the stored value; empty if there is none."""
        return self._values.get(name, "")

    def port(self, name: str, preferred: int | None = None) -> int:
        """Return the stored port, or a new one if it is taken by now."""
        wanted = self._stored_port(name) or preferred or 0
        if wanted and is_free(wanted):
            return int(self.store(name, str(wanted)))
        near = range(wanted + 1, min(wanted + 100, MAX_PORT) + 1) if preferred else ()
        others = self._values.values()  # those servers may not listen yet
        port = next(one for one in itertools.chain(near, iter(any_free, 0)) if str(one) not in others and is_free(one))
        if preferred:
            self._say(f"port {wanted} for {name} is taken by another program: using {port}")
        return int(self.store(name, str(port)))

    def chosen_port(self, name: str) -> int:
        """Return the port that a running stack has chosen; raise `StackError` if it has not yet."""
        if port := self._stored_port(name):
            return port
        raise StackError(f"the stack in {self.folder} is still starting: try again in a few seconds")

    def _stored_port(self, name: str) -> int:
        """Return the stored port, or 0 if there is none; raise `ImproperlyConfigured` for a value that is no port."""
        text = self._values.get(name, "0")
        with contextlib.suppress(ValueError):
            if 0 <= int(text) <= MAX_PORT:
                return int(text)
        raise ImproperlyConfigured(
            f"{self._path} has {text!r} as the port {name!r}: set it to a number up to {MAX_PORT}, or 0 for a new port"
        )

    def _read(self) -> None:
        if not self._path.exists():
            return
        values = None
        with contextlib.suppress(ValueError):
            values = json.loads(self._path.read_text())
        if not isinstance(values, dict) or not all(type(value) in (str, int) for value in values.values()):
            raise ImproperlyConfigured(
                f"{self._path} has the stack's secrets and is not a JSON object of texts and numbers: "
                "repair it, or restore it from a backup"
            )
        self._values = {name: str(value) for name, value in values.items()}


def _sync(path: Path) -> None:
    """Wait until a file is on disk, or a folder's list of files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class StackError(Exception):
    """A failure whose message is enough: it is printed without a traceback."""


class AlreadyRunning(StackError):
    """Another process works in this folder."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Hold the lock. Wait for the guard of a killed stack; raise `AlreadyRunning` if a live process holds it."""
    with path.open("a+") as lock:
        deadline = time.monotonic() + GUARD_SECONDS
        while not _try(lock):
            text = path.read_text()
            holder = int(text) if text.isdigit() else 0
            if is_alive(holder) or time.monotonic() > deadline:
                raise AlreadyRunning(f"process {holder} is already running in {path.parent}")
            time.sleep(0.05)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield lock


def is_locked(path: Path) -> bool:
    """Tell whether a stack is running."""
    if not path.exists():
        return False
    with path.open() as lock:
        return not _try(lock)


def _try(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is not a zombie."""
    return any(running.pid == pid for running in running_processes())
