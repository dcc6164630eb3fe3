"""The embedded PostgreSQL: the binaries that a Python package carries, on loopback, with a password."""

import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

import psycopg

from broker_project.stack.ordinary_user import ordinary_user
from broker_project.stack.ports import LOOPBACK
from broker_project.stack.postgres_predecessors import end_predecessor
from broker_project.stack.postgres_programs import binary, run
from broker_project.stack.services import Service

NAME = "broker"
"""Of the user and of the database."""

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

FORGETFUL = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
"""For throw-away servers."""


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
