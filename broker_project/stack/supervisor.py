"""Run services: start them in order, restart those that end, stop them in reverse order."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Self

from broker_project.core.subprocesses import die_with
from broker_project.stack.bootstrap import START_HEARTBEAT_SECONDS, heartbeat
from broker_project.stack.folders import ROOT, StackError, StackFolder
from broker_project.stack.guard import Guard

FIRST_BACK_OFF = 0.5
MAX_BACK_OFF = 30.0
STEADY_SECONDS = 10.0
"""A process that ran longer than this restarts with the first back-off."""

LOG_TAIL_BYTES = 2_000
MAX_LOG_BYTES = 20_000_000

CHECK_SECONDS = 0.1
READY_SECONDS = 60.0
MIN_PAUSE, MAX_PAUSE = 0.03, 0.5
"""Between two checks whether a service is ready. A server that recovers logs each of them, so they become fewer."""

CHECKS_PER_LOG_ROTATION = 100


@dataclass(frozen=True, slots=True)
class Service:
    """The description of one process of the stack, which can be started any number of times."""

    name: str
    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the environment of the supervisor."""

    prepare: Callable[[], object] = field(default=lambda: None)
    """Called before every start."""

    is_ready: Callable[[], bool] = field(default=lambda: True)
    is_recovering: Callable[[], bool] = field(default=lambda: False)
    """Tells that it is not ready yet because it recovers from a crash. It is waited for, however long that takes."""

    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 20.0
    """How long it may take to stop; then it is killed."""

    death_signal: signal.Signals = signal.SIGKILL
    """Sent by the kernel and by the guard if the supervisor dies."""

    is_store: bool = False
    """Stores start before the application and stop after it."""


class DidNotStart(StackError):
    """A service ended or did not become ready; the message has the end of its log."""


class Child:
    """A service and its process; safe to use from several threads."""

    def __init__(self, service: Service, *, logs: Path, guard: Guard) -> None:
        self.service = service
        self.log = logs / f"{service.name}.log"
        self.restarts = 0
        self._guard = guard
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._started_at = 0.0
        self._log_start = 0
        self._back_off = FIRST_BACK_OFF

    @property
    def pid(self) -> int | None:
        """The process id; None while it is not running."""
        process = self._process
        return process.pid if process and process.poll() is None else None

    def start(self) -> None:
        """Start the process. From now on it is restarted until `stop`."""
        with self._lock:
            if self.pid is None:
                self._wanted = True
                self._spawn()

    def wait_until_ready(self) -> None:
        """Wait until the service is ready; raise `DidNotStart` if it ended, or takes long and is not recovering."""
        deadline, pause = time.monotonic() + READY_SECONDS, MIN_PAUSE
        while not self.service.is_ready():
            if self.service.is_recovering():
                deadline, pause = time.monotonic() + READY_SECONDS, min(pause * 1.1, MAX_PAUSE)
            if self.pid is None or time.monotonic() > deadline:
                state = "ended" if self.pid is None else f"was not ready after {READY_SECONDS:.0f} s"
                raise DidNotStart(f"{self.service.name} {state}; the end of {self.log}:\n{self.tail()}")
            time.sleep(pause)

    def stop(self, by: signal.Signals | None = None) -> None:
        """Send the stop signal or another, wait, kill what is left of the group; do not restart it until `start`."""
        with self._lock:
            self._wanted = False
            process = self._process
        if process and process.poll() is None:
            process.send_signal(by or self.service.stop_signal)
            with suppress(subprocess.TimeoutExpired):
                process.wait(self.service.stop_seconds)
        self._clear()

    def kill(self) -> None:
        """Kill the process group, as a crash would. The supervisor restarts it."""
        process = self._process
        if process:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def restart_if_ended(self) -> bool:
        """Restart the process if it ended and its back-off is over; return whether it did."""
        with self._lock:
            if not self._wanted or self.pid is not None:
                return False
            ran = time.monotonic() - self._started_at
            if ran < self._back_off:
                return False
            self._back_off = FIRST_BACK_OFF if ran > STEADY_SECONDS else min(self._back_off * 2, MAX_BACK_OFF)
            self.restarts += 1
            self._clear()
            self._spawn()
            return True

    def tail(self) -> str:
        """Return the end of the log of the current process."""
        with self.log.open("rb") as log:
            log.seek(max(self._log_start, self.log.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def rotate_log(self) -> None:
        """Move the log aside if it is large, and keep one older log."""
        if self.log.exists() and self.log.stat().st_size > MAX_LOG_BYTES:
            older = self.log.with_suffix(".log.1")
            try:
                older.write_bytes(self.log.read_bytes())
            except OSError:
                older.unlink(missing_ok=True)  # part of a log would take the last space of a full disk
                raise
            os.truncate(self.log, 0)

    def _spawn(self) -> None:
        self._started_at = time.monotonic()
        self.service.prepare()
        supervisor = os.getpid()
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [str(word) for word in self.service.command],
                env=os.environ | self.service.environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: die_with(supervisor, self.service.death_signal),  # noqa: PLW1509 - two system calls
            )
        self._guard.watch(self._process.pid, self.service.death_signal)

    def _clear(self) -> None:
        """Kill the process and what it left in its group, and tell the guard."""
        self.kill()
        if self._process:
            self._guard.forget(self._process.pid)
            self._process = None


class Supervisor:
    """The services of one stack, by name."""

    def __init__(self, folder: StackFolder, *, guard: Guard, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._guard = guard
        self._say = say
        self._children: dict[str, Child] = {}
        self._ended = Event()
        self._watcher = Thread(target=self._watch, name="supervisor", daemon=True)

    def __getitem__(self, name: str) -> Child:
        """Return the process of a service."""
        return self._children[name]

    def __iter__(self) -> Iterator[Child]:
        """Iterate over all processes."""
        return iter([*self._children.values()])

    def __enter__(self) -> Self:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *services: Service) -> None:
        """Start services in parallel, and return when all are ready; say what is waited for."""
        children = [Child(service, logs=self._folder.logs, guard=self._guard) for service in services]
        self._children |= {child.service.name: child for child in children}
        for child in children:
            child.start()

        def waiting() -> str:
            missing = [child.service for child in children if not child.service.is_ready()]
            names = [f"{one.name} (recovering its data)" if one.is_recovering() else one.name for one in missing]
            return f"waiting for {', '.join(names) or 'the last of them'}"

        with heartbeat(self._say, waiting, START_HEARTBEAT_SECONDS):
            for child in children:
                child.wait_until_ready()

    @contextmanager
    def meanwhile(self, *services: Service) -> Iterator[None]:
        """Run more services inside the context, then stop and forget them."""
        try:
            self.start(*services)
            yield
        finally:
            for service in services:
                self._children.pop(service.name).stop()

    def stop(self) -> None:
        """Stop the application, then the stores, each in parallel."""
        for are_stores in (False, True):
            stopping = [Thread(target=child.stop) for child in self if child.service.is_store is are_stores]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
        self._ended.set()
        if self._watcher.is_alive():
            self._watcher.join()

    def _watch(self) -> None:
        """Restart what ended. This thread must outlive the processes: the parent-death signal is sent when it ends."""
        checks = 0
        while not self._ended.wait(CHECK_SECONDS):
            checks += 1
            for child in self:
                with self._reported(child, f"{child.service.name} had ended and cannot start"):
                    if child.restart_if_ended():
                        self._report(child, f"{child.service.name} had ended: started again (log: {child.log})")
                if checks % CHECKS_PER_LOG_ROTATION == 0:
                    with self._reported(child, f"{child.log} cannot be rotated"):
                        child.rotate_log()

    @contextmanager
    def _reported(self, child: Child, failure: str) -> Iterator[None]:
        """Report what fails inside, and go on."""
        try:
            yield
        except Exception as problem:  # noqa: BLE001 - after any failure the next check tries again
            self._report(child, f"{failure}: {problem}")

    def _report(self, child: Child, text: str) -> None:
        """Say something about a process. If standard error is closed or full, write it to the log of the process."""
        try:
            self._say(text)
        except (OSError, ValueError):
            with suppress(OSError), child.log.open("a") as log:
                log.write(f"broker: {text}\n")
