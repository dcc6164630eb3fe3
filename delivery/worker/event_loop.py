"""The event loop: one thread of a worker process runs any number of lines side by side, a round at a time."""

import resource
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import structlog
from django.db import Error

from broker_project.core.db import forget_connection
from broker_project.core.egress import EgressPolicy
from delivery.callbacks.address import CallbackTerms
from delivery.http.client import HttpClient
from delivery.http.transfer import Answer
from delivery.limits import (
    GATHER_SECONDS,
    HANGS_SECONDS,
    LINGER_SECONDS,
    LINGER_SHARE,
    LOCKED_RETRY_SECONDS,
    MAX_EXTRA_SLOTS,
    MAX_IN_FLIGHT,
    MAX_PROCESS_BYTES,
    REQUEST_DEADLINE_SECONDS,
    STUCK_SECONDS,
)
from delivery.webhook.parts import Outgoing
from delivery.webhook.transform import job_for
from delivery.worker.buffer import BodyBudget, Buffer, RateLimiter
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.pages import read_pages
from delivery.worker.queue import read_groups
from delivery.worker.release import Releaser
from delivery.worker.rounds import DatabaseBackoff, Settling
from delivery.worker.slots import Slots, SlotState
from delivery.worker.steps import NotStarted, Read, Reply, RequestSent, Rest, Send, Settled, Transform, Wait
from subscriptions.scripting.jobs import Made, NotRun, Result
from subscriptions.scripting.runner import ScriptRunner

log = structlog.get_logger(__name__)

IDLE_SECONDS: Final = 1.0


class EventLoop(threading.Thread):
    """Runs lines until it is stopped; the only thread that touches its client and its lines."""

    def __init__(
        self,
        *,
        worker: str,
        queue_max_in_flight: int,
        terms: CallbackTerms,
        egress: EgressPolicy,
        on_failure: Callable[[], object] = lambda: None,
        deadline_seconds: float = REQUEST_DEADLINE_SECONDS,
    ) -> None:
        super().__init__(name="event-loop", daemon=True)
        self.worker = worker
        self.queue_max_in_flight = queue_max_in_flight
        """Messages that each QUEUE sender has in flight."""
        self._on_failure = on_failure
        self._client = HttpClient(egress=egress, deadline_seconds=deadline_seconds)
        self._scripts = ScriptRunner()
        self._client.watch_too(self._scripts.fileno())
        self._releaser = Releaser(on_failure)
        self.budget = BodyBudget(MAX_PROCESS_BYTES)
        self.rate_limiter = RateLimiter()
        self.lines = Rounds(self._client, self._releaser, self.budget, self._scripts, terms)
        self._inbox: list[ActiveLine] = []
        self._inbox_lock = threading.Lock()
        self._stopping = threading.Event()

    def take(self, lines: Sequence[ActiveLine]) -> None:
        """Run these lines from now on; may be called from any thread."""
        with self._inbox_lock:
            self._inbox += lines
        self._client.interrupt()

    def free_places(self) -> tuple[int, int]:
        """Return how many more lines may be taken, and how many more slots they may have beyond their first."""
        lines = [*self.lines.all(), *self._inbox]
        extra = sum(len(line.slots) - 1 for line in lines)
        places = 0 if self._stopping.is_set() else max(0, MAX_IN_FLIGHT - len(lines) - extra)
        return places, max(0, MAX_EXTRA_SLOTS - extra)

    def stop(self, seconds: float) -> bool:
        """Start nothing new, settle what is in flight and release every line; say whether that was done in time."""
        self._stopping.set()
        self._client.interrupt()
        self.join(seconds)
        return not self.is_alive()

    def run(self) -> None:
        """Go round until stopped and empty, with as many files open as this process may have."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            while not self._stopping.is_set() or self.lines or self._inbox:
                self._round()
        except Exception:
            # A fault of ours: better a new process, which recovers these lines, than one that runs half of them.
            log.exception("event_loop.failed")
            self._on_failure()
            raise
        finally:
            self._releaser.stop()
            self._client.close()
            self._scripts.close()
            forget_connection()

    def _round(self) -> None:
        answers = self._client.wait(self.lines.patience())
        with self._inbox_lock:
            new, self._inbox = self._inbox, []
        self.lines.begin(new)
        if self._stopping.is_set():
            self.lines.stop()  # before they hear of their answers, or they would send once more
        self.lines.answered(answers)
        self.lines.ran(self._scripts.finished())
        self.lines.go()


class Rounds:
    """The lines of a worker and their slots; belongs to the event loop's thread.

    On a database error everything stays where it is and is tried again on a new connection.
    """

    def __init__(
        self,
        client: HttpClient,
        releaser: Releaser,
        budget: BodyBudget,
        scripts: ScriptRunner,
        terms: CallbackTerms,
    ) -> None:
        self._client = client
        self._releaser = releaser
        self._budget = budget
        self._scripts = scripts
        self._terms = terms
        self._lines: dict[int, ActiveLine] = {}
        self._slots = Slots()
        self._backoff = DatabaseBackoff()
        self._settling = Settling(self._slots, self._backoff)
        self._look_at = 0.0
        """Monotonic time of the next look for new work."""
        self._stuck_at = 0.0
        """Monotonic time at which buffers were last taken from lines that hang."""

    def __len__(self) -> int:
        return len(self._lines)

    def all(self) -> list[ActiveLine]:
        """Return the lines; may be called from any thread."""
        return list(self._lines.values())  # in one go, unlike a loop

    def begin(self, lines: Sequence[ActiveLine]) -> None:
        """Take lines in; one that is here already, under an older epoch, has been lost to the new claim."""
        for line in lines:
            if line.id in self._lines:
                self._lose(self._lines[line.id])
            self._lines[line.id] = line
            self._slots.add(line)
            for slot in line.slots:
                slot.advance(None)

    def answered(self, answers: Sequence[Answer]) -> None:
        """Resume the slots whose requests have been answered."""
        now = time.monotonic()
        for answer in answers:
            slot = answer.token
            assert isinstance(slot, Slot)  # noqa: S101 - the only tokens there are
            assert slot.started_at  # noqa: S101 - it was started
            if self._has(slot.line):
                slot.line.run.moved_at = now
                self._advance(slot, RequestSent(answer, slot.started_at))

    def ran(self, results: Sequence[tuple[Hashable, Result]]) -> None:
        """Resume the slots whose scripts have ended."""
        now = time.monotonic()
        for slot, result in results:
            assert isinstance(slot, Slot)  # noqa: S101 - the only tokens there are
            if self._has(slot.line):
                slot.line.run.moved_at = now
                self._advance(slot, self._with_room(slot, result))

    def stop(self) -> None:
        """Start nothing new."""
        for line in self._lines.values():
            line.stopping = True

    def go(self) -> None:
        """Do all that can be done now, until every line waits for an answer, for the database, or for a moment."""
        now = time.monotonic()
        self._resume(now)
        if now >= self._look_at and self._slots.any_in(SlotState.IDLE):
            self._look_again(now)
        if now >= self._stuck_at + STUCK_SECONDS:
            self._stuck_at = now
            self._return_buffers(now)
        if self._backoff.is_over:
            for slot in self._slots[SlotState.LOCKED]:
                self._slots.move(slot, SlotState.SETTLING)
        while self._slots.any_in(SlotState.SETTLING, SlotState.READING) and self._backoff.is_over:
            self._settle()
            self._read()
            if self._client.is_gathering and not self._slots.any_in(SlotState.READING):
                break  # what these lines send next is settled with the answers about to come

    def patience(self) -> float:
        """Return the seconds after which there is something to do even if no answer comes."""
        now = time.monotonic()
        is_reading = self._slots.any_in(SlotState.READING)
        if is_reading or self._slots.any_in(SlotState.SETTLING):
            at_least = GATHER_SECONDS if self._client.is_gathering and not is_reading else 0.0
            return max(at_least, self._backoff.until - now)
        waits = [IDLE_SECONDS]
        if (scripts := self._scripts.patience()) is not None:
            waits.append(scripts)
        if self._slots.any_in(SlotState.IDLE):
            waits.append(self._look_at - now)
        if self._slots.any_in(SlotState.PARKED):
            waits.append(HANGS_SECONDS)
        if self._slots.any_in(SlotState.LOCKED):
            waits.append(LOCKED_RETRY_SECONDS)
        waits += [slot.resumes_at - now for slot in self._slots[SlotState.PACING]]
        return max(0.0, min(waits))

    def _return_buffers(self, now: float) -> None:
        """Take back what lines have read of which every slot hangs: such a line must not starve others."""
        for line in self._lines.values():
            if all(slot.has_waited(now, STUCK_SECONDS) for slot in line.slots):
                line.return_buffer(self._budget)

    def _advance(self, slot: Slot, reply: Reply) -> None:
        slot.advance(reply)
        self._slots.move(slot, SlotState.SETTLING)

    def _has(self, line: ActiveLine) -> bool:
        return self._lines.get(line.id) is line

    def _settle(self) -> None:
        released: list[ActiveLine] = []
        for slot, settled in self._settling.settle():
            if settled is None:
                self._lose(slot.line)
            elif self._has(slot.line):
                slot.settled(self._budget)
                self._follow(slot, settled)
                if all(other.state is SlotState.PARKED for other in slot.line.slots):
                    self._release(slot.line)
                    released.append(slot.line)
        if released:
            self._releaser.release(released)
        self._client.begin()  # before anything else takes time: each was checked against its lease

    def _follow(self, slot: Slot, settled: Settled) -> None:
        """Let a slot wait for what its step, which has been settled, asks for."""
        match slot.step:
            case Transform(delivery=delivery):
                slot.prepare(delivery)
                self._slots.move(slot, SlotState.TRANSFORMING)
                self._scripts.run(slot, job_for(delivery.id, delivery.content, delivery.destination))
            case Wait(seconds=seconds):
                self._idle(slot, SlotState.PACING)
                slot.resumes_at = time.monotonic() + seconds
            case Send(delivery=delivery):
                wait = settled.waits.get(delivery.destination.subscription_id)
                if wait is not None:
                    slot.line.rate_limiter.learn(delivery.destination, wait, time.monotonic())
                self._start(slot, delivery, settled.started.get(delivery.id))
            case Read(linger=True) if not slot.line.must_stop():
                self._idle(slot, SlotState.IDLE)
            case Read():
                self._slots.move(slot, SlotState.READING)
            case Rest():
                self._slots.move(slot, SlotState.PARKED)

    def _idle(self, slot: Slot, state: SlotState) -> None:
        """Let a slot wait; its turn may end, unless another slot of the line waits for an answer."""
        if not slot.line.is_waiting:
            slot.line.run.idle(slot.line.id)
        self._slots.move(slot, state)

    def _release(self, line: ActiveLine) -> None:
        if line.hold and line.is_held:
            log.info("line.held", line_id=line.id, head_id=line.head_id, reason=line.hold.reason, pause=line.hold.pause)
        line.return_all(self._budget)
        del self._lines[line.id]
        self._slots.drop(line)

    def _start(self, slot: Slot, delivery: Outgoing, sequence: int | None) -> None:
        line, now = slot.line, time.monotonic()
        if sequence is None:
            line.return_buffer(self._budget)
            slot.give_back(self._budget)
            slot.advance(NotStarted())
        elif not line.fits_the_lease(now):
            slot.step, slot.may_be_marked = Send(None, delivery), True  # the settle took long: renew first
        else:
            self._slots.move(slot, SlotState.IN_FLIGHT)
            self._client.start(slot, slot.start(delivery, sequence, at=datetime.now(UTC)), since=now)

    def _with_room(self, slot: Slot, result: Result) -> Result:
        """Return a script's result, `NotRun` if the process holds too many bodies for what it made."""
        if isinstance(result, Made):
            assert slot.in_flight  # noqa: S101 - its script has run
            more = max(0, len(result.body or b"") - slot.in_flight.size)
            if not more or self._budget.take(more):
                slot.held += more
                return result
        if isinstance(result, Made | NotRun):
            slot.line.return_buffer(self._budget)
            slot.give_back(self._budget)
            return NotRun()
        return result

    def _resume(self, now: float) -> None:
        """Resume what has waited long enough for its rate, and what rests in a line that hangs (contract 6.6)."""
        for slot in self._slots[SlotState.PACING]:
            if slot.resumes_at <= now or slot.line.stopping:
                self._advance(slot, None)
        hanging: dict[ActiveLine, bool] = {}
        for slot in self._slots[SlotState.PARKED]:
            if slot.line not in hanging:
                hanging[slot.line] = slot.line.hangs(now) and not slot.line.must_stop()
            if hanging[slot.line]:
                self._advance(slot, None)

    def _look_again(self, since: float) -> None:
        """Read for the lines that are idle, but for those whose turn has ended, and choose when to look again."""
        for slot in self._slots[SlotState.IDLE]:
            if slot.line.must_stop():
                self._advance(slot, None)
            else:
                self._slots.move(slot, SlotState.READING)
        self._read()
        now = time.monotonic()
        self._look_at = now + max(LINGER_SECONDS, (now - since) / LINGER_SHARE)

    def _read(self) -> None:
        """Give pages to the lines of all slots that wait for one: one statement for senders, one for the others."""
        waiting = self._slots[SlotState.READING]
        read: Callable[..., Mapping[int, Buffer[Any]]]
        for of_groups, read in ((True, partial(read_groups, terms=self._terms)), (False, read_pages)):
            slots = [slot for slot in waiting if slot.line.is_sender is of_groups]
            lines = [*{slot.line.id: slot.line for slot in slots}.values()]
            for line in lines:
                line.return_buffer(self._budget)
            try:
                buffers = read([line.page_request() for line in lines], self._budget) if lines else {}
            except Error as failure:
                self._backoff.begin(failure)  # they wait on
                continue
            for line in lines:
                line.receive(buffers[line.id])
            for slot in slots:
                self._advance(slot, None)

    def _lose(self, line: ActiveLine) -> None:
        """Forget a line that is no longer ours; answers to its requests are ignored."""
        if not self._has(line):
            return  # with another of its slots
        line.return_all(self._budget)
        del self._lines[line.id]
        self._slots.drop(line)
        line.run.stopped(line.id, has_more=False)
