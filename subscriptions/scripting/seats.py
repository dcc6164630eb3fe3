"""Processes and what they are at: which are free, what has come of their jobs, which are ending."""

import select
import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from subscriptions.scripting.jobs import Job, Result
from subscriptions.scripting.limits import CPU_SECONDS, TRIAL_CPU_SECONDS
from subscriptions.scripting.process import LEAST_LOOK_SECONDS, ScriptProcess
from subscriptions.scripting.process_pool import Entry


@dataclass(slots=True, eq=False)
class Seat:
    """A process that runs either what is known to be slow or all else, and what it runs now."""

    process: ScriptProcess
    is_for_slow: bool
    is_ready: bool = False
    token: Hashable = None
    job: Job | None = None
    is_killed: bool = False
    """Its job's result has been told."""
    used: float = 0.0
    """CPU seconds that its job has taken, once that has ended."""

    @property
    def is_free(self) -> bool:
        """Whether it may be given a job."""
        return self.is_ready and not self.job and not self.is_killed


class Seats:
    """All processes of a runner; nothing here waits for one of them."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._seats: dict[int, Seat] = {}
        self._ending: list[Seat] = []
        """Whose processes are gone but for their exit codes."""

    def __bool__(self) -> bool:
        return bool(self._seats or self._ending)

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    def fileno(self) -> int:
        """Return the descriptor that is readable when one of them has something to say."""
        return self._poll.fileno()

    def start(self, *, is_for_slow: bool) -> None:
        """Start a process.

        Raises:
            OSError: there can be no more.

        """
        seat = Seat(ScriptProcess(), is_for_slow)
        self._seats[seat.process.fileno()] = seat
        self._poll.register(seat.process.fileno(), select.EPOLLIN)

    def begin(self, seat: Seat, entry: Entry) -> None:
        """Give one that is free a job."""
        seat.token, seat.job = entry.token, entry.job
        seat.process.begin(entry.job, CPU_SECONDS if seat.is_for_slow else TRIAL_CPU_SECONDS)
        self._watch(seat)

    def answered(self) -> Iterator[tuple[Seat, Result]]:
        """Yield what has come of jobs; those that are ready are so from now on."""
        for descriptor, events in self._poll.poll(0):
            seat = self._seats[descriptor]
            if events & select.EPOLLOUT:
                seat.process.send()
                self._watch(seat)
            if events & ~select.EPOLLOUT and (result := self._heard(seat)):
                seat.is_ready = True
                seat.used = seat.process.used()
                yield seat, result

    def overdue(self, now: float) -> Iterator[tuple[Seat, Result]]:
        """Kill those that have used up their time, and yield what becomes of their jobs."""
        for seat in self._seats.values():
            if seat.job and (verdict := seat.process.overdue(now)):
                seat.is_killed = True
                seat.used = seat.process.used()
                seat.process.kill()
                yield seat, verdict

    def ended(self) -> Iterator[tuple[Seat, Result]]:
        """Yield those whose processes have ended, and why."""
        for seat in [*self._ending]:
            if result := seat.process.reap():
                self._ending.remove(seat)
                yield seat, result

    def next_looks(self) -> Iterator[float]:
        """Yield when to look at each of them though it says nothing, monotonic."""
        yield from (seat.process.next_look for seat in self._seats.values() if seat.job)
        if self._ending:
            yield time.monotonic() + LEAST_LOOK_SECONDS

    def close(self) -> None:
        """End them all, and wait until they have."""
        for seat in self._seats.values():
            seat.process.hang_up()
        for seat in (*self._seats.values(), *self._ending):
            seat.process.wait()
        self._seats.clear()
        self._ending.clear()
        self._poll.close()

    def _heard(self, seat: Seat) -> Result | None:
        try:
            return seat.process.receive()
        except EOFError:
            self._poll.unregister(seat.process.fileno())
            del self._seats[seat.process.fileno()]
            seat.used = max(seat.process.used(), TRIAL_CPU_SECONDS)  # who ends its process is slow, however it did so
            seat.process.hang_up()
            self._ending.append(seat)
            return None

    def _watch(self, seat: Seat) -> None:
        events = select.EPOLLIN | (select.EPOLLOUT if seat.process.wants_to_send else 0)
        self._poll.modify(seat.process.fileno(), events)
