"""Where a stack keeps things: its folder, the lock on it, and its ports and secrets."""

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from django.core.exceptions import ImproperlyConfigured

from broker_project.stack.ports import any_free, free_from, is_free

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".broker"
"""Everything that is made at run time; ignored by git, may be deleted whenever nothing runs."""

SECRET_BYTES = 48
"""As text 64 characters: Django asks for 50 in a secret key."""
PASSWORD_BYTES = 12

LAST_WILL_SECONDS = 20.0
"""How long a killed stack's guard may take to end its processes."""


@dataclass(frozen=True, slots=True)
class StackFolder:
    """The folder of one stack: `.broker` itself, the demo's, or that of a test run."""

    path: Path

    @property
    def logs(self) -> Path:
        """One file a process."""
        return self.made("logs")

    @property
    def lock(self) -> Path:
        """Locked while the stack runs; holds its process id."""
        return self.made() / "stack.lock"

    @property
    def settings(self) -> Path:
        """Ports and secrets, chosen once and kept; readable by the owner only."""
        return self.made() / "stack.json"

    def forget_stores(self) -> None:
        """Delete what PostgreSQL, Redis and Spark have kept, but neither ports nor secrets."""
        for name in ("postgres", "redis", "lake"):
            shutil.rmtree(self.path / name, ignore_errors=True)

    def made(self, name: str = "") -> Path:
        """Return a folder in it, made if it is not there."""
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


class Kept:
    """The file's content; written at once whenever something is chosen.

    Raises:
        ImproperlyConfigured: somebody has made something else of it; also where something is kept.

    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._values: dict[str, str] = {}
        self._read()

    @property
    def folder(self) -> Path:
        """Where the file is, and whatever else the stack keeps."""
        return self._path.parent

    def secret(self, name: str) -> str:
        """Return a random secret."""
        return self._values.get(name) or self._keep(name, secrets.token_urlsafe(SECRET_BYTES))

    def password(self, name: str) -> str:
        """Return a random secret that people can type."""
        return self._values.get(name) or self._keep(name, secrets.token_urlsafe(PASSWORD_BYTES))

    def note(self, name: str, value: str) -> None:
        """Keep what somebody else has chosen."""
        self._keep(name, value)

    def noted(self, name: str) -> str:
        """Return what is kept under this name, nothing if nothing is."""
        return self._values.get(name, "")

    def port(self, name: str, preferred: int | None = None) -> int:
        """Return the port kept under this name; another if somebody else has taken it meanwhile."""
        wanted = int(self._values.get(name, preferred or 0))
        if wanted and is_free(wanted):
            return int(self._keep(name, str(wanted)))
        port = free_from(wanted + 1) if preferred else any_free()
        if preferred:
            self._say(f"port {wanted} for {name} is taken by another program: using {port}")
        return int(self._keep(name, str(port)))

    def kept_port(self, name: str) -> int:
        """Return the port of a stack that is running."""
        return int(self._values[name])

    def _read(self) -> None:
        if self._path.exists():
            try:
                self._values = dict(_texts(json.loads(self._path.read_text())))
            except (ValueError, AttributeError) as problem:
                raise ImproperlyConfigured(
                    f"{self._path} holds the stack's secrets and is no JSON object of texts and numbers ({problem}): "
                    "mend it, or put it back"
                ) from problem

    def _keep(self, name: str, value: str) -> str:
        self._read()  # another object may have kept something meanwhile
        if self._values.get(name) != value:
            self._values[name] = value
            new = self._path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(json.dumps(self._values, indent=1))
            new.replace(self._path)
        return value


def _texts(values: Any) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if type(value) not in (str, int):
            raise ValueError(f"{name!r} is neither text nor number")
        yield name, str(value)


class AlreadyRunning(Exception):
    """Another process runs a stack in this folder."""


@contextlib.contextmanager
def locked(path: Path) -> Iterator[IO[str]]:
    """Hold the lock; wait for the guard of a killed predecessor, but not for a live one."""
    with path.open("a+") as lock:
        deadline = time.monotonic() + LAST_WILL_SECONDS
        while not _try(lock):
            holder = _holder(path)
            if is_alive(holder) or time.monotonic() > deadline:
                raise AlreadyRunning(f"a stack is running in {path.parent} (process {holder})")
            time.sleep(0.05)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield lock


def is_locked(path: Path) -> bool:
    """Say whether a stack is running there."""
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


def _holder(path: Path) -> int:
    text = path.read_text()
    return int(text) if text.isdigit() else 0


def is_alive(pid: int) -> bool:
    """Say whether there is such a process, and not only its remains."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}
