"""The event loop: one thread of a worker process runs any number of lines side by side, a round at a time."""

import resource
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Final

import structlog
from django.db import Error

from broker_project.core.db import forget_connection
from broker_project.core.egress import EgressPolicy
from delivery.callbacks.address import CallbackTerms
from delivery.dispatch import notify
from delivery.dispatch.sweep import still_due
from delivery.http.client import HttpClient
from delivery.http.transfer import Answer
from delivery.limits import (
    GATHER_SECONDS,
    LOCKED_RETRY_SECONDS,
    MAX_EXTRA_SLOTS,
    MAX_IN_FLIGHT,
    MAX_PROCESS_BYTES,
    REQUEST_DEADLINE_SECONDS,
    STUCK_SECONDS,
)
from delivery.webhook.parts import Outgoing
from delivery.webhook.transform import job_for
from delivery.worker.buffer import BodyBudget, RateLimiter
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.pending_settles import DatabaseBackoff, PendingSettles
from delivery.worker.steps import NotStarted, Read, Reply, RequestSent, Rest, Send, Settled, Step, Transform, Wait
from delivery.worker.waits import IdlePoll, PageReader, Parked, RateWait
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
    """The lines of a worker, and what each of their slots waits for; belongs to the event loop's thread.

    A slot waits for an answer, a script, a settle, a page, new work or a rate limit, or it rests. On a database error
    everything is kept and tried again on a new connection.
    """

    def __init__(
        self,
        client: HttpClient,
        releaser: "Releaser",
        budget: BodyBudget,
        scripts: ScriptRunner,
        terms: CallbackTerms,
    ) -> None:
        self._client = client
        self._releaser = releaser
        self._budget = budget
        self._scripts = scripts
        self._lines: dict[int, ActiveLine] = {}
        self._backoff = DatabaseBackoff()
        self._unsettled = PendingSettles(self._backoff)
        self._paging = PageReader(budget, terms, self._backoff)
        self._lingering = IdlePoll()
        self._pacing = RateWait()
        self._resting = Parked()
        self._looked_at = 0.0

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
            self._advance_all(line.slots)

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
        self._advance_all(self._resting.take_called(now))
        self._advance_all(self._pacing.take_due(now))
        if slots := self._lingering.take_due(now):
            self._look_again(slots, now)
        if now >= self._looked_at + STUCK_SECONDS:
            self._looked_at = now
            self._return_buffers(now)
        if self._backoff.is_over:
            self._unsettled.take_locked()
        while (self._unsettled or self._paging) and self._backoff.is_over:
            self._settle()
            if self._paging:
                self._advance_all(self._paging.read())
            if self._client.is_gathering and not self._paging:
                break  # what these lines send next is settled with the answers about to come

    def _return_buffers(self, now: float) -> None:
        """Take back what lines have read of which every slot hangs: such a line must not starve others."""
        for line in self._lines.values():
            if all(slot.has_waited(now, STUCK_SECONDS) for slot in line.slots):
                line.return_buffer(self._budget)

    def patience(self) -> float:
        """Return the seconds after which there is something to do even if no answer comes."""
        now = time.monotonic()
        if self._unsettled or self._paging:
            at_least = GATHER_SECONDS if self._client.is_gathering and not self._paging else 0.0
            return max(at_least, self._backoff.until - now)
        waits = (self._lingering.patience(now), self._pacing.patience(now), self._resting.patience())
        patience = min(wait for wait in (IDLE_SECONDS, *waits, self._scripts.patience()) if wait is not None)
        return min(patience, LOCKED_RETRY_SECONDS) if self._unsettled.locked else patience

    def _advance(self, slot: Slot, reply: Reply) -> None:
        self._unsettled.add(slot, slot.advance(reply))

    def _advance_all(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._advance(slot, None)

    def _has(self, line: ActiveLine) -> bool:
        return self._lines.get(line.id) is line

    def _settle(self) -> None:
        released: list[ActiveLine] = []
        for slot, step, settled in self._unsettled.settle():
            if settled is None:
                self._lose(slot.line)
            elif self._has(slot.line):
                slot.settled(self._budget, step)
                if not isinstance(step, Rest):
                    self._follow(slot, step, settled)
                elif self._resting.add(slot):
                    self._release(slot.line)
                    released.append(slot.line)
        if released:
            self._releaser.release(released)
        self._client.begin()  # before anything else takes time: each was checked against its lease

    def _follow(self, slot: Slot, step: Step, settled: Settled) -> None:
        """Let a slot wait for what its step, which has been settled, asks for."""
        match step:
            case Transform(delivery=delivery):
                slot.prepare(delivery)
                self._scripts.run(slot, job_for(delivery.id, delivery.content, delivery.destination))
            case Wait(seconds=seconds):
                self._pacing.add(slot, seconds)
            case Send(delivery=delivery):
                wait = settled.waits.get(delivery.destination.subscription_id)
                if wait is not None:
                    slot.line.rate_limiter.learn(delivery.destination, wait, time.monotonic())
                self._start(slot, delivery, settled.started.get(delivery.id))
            case Read(linger=True) if not slot.line.must_stop():
                self._lingering.add(slot)
            case Read():
                self._paging.add(slot)

    def _release(self, line: ActiveLine) -> None:
        if line.hold and line.is_held:
            log.info("line.held", line_id=line.id, head_id=line.head_id, reason=line.hold.reason, pause=line.hold.pause)
        line.return_all(self._budget)
        del self._lines[line.id]

    def _start(self, slot: Slot, delivery: Outgoing, sequence: int | None) -> None:
        line, now = slot.line, time.monotonic()
        if sequence is None:
            line.return_buffer(self._budget)
            slot.give_back(self._budget)
            self._advance(slot, NotStarted())
        elif not line.fits_the_lease(now):
            self._unsettled.keep([(slot, Send(None, delivery))])  # the settle took long: renew first
        else:
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

    def _look_again(self, slots: Sequence[Slot], now: float) -> None:
        """Read for the lines that linger, but for those whose turn has ended."""
        for slot in slots:
            if slot.line.must_stop():
                self._advance(slot, None)
            else:
                self._paging.add(slot)
        if self._paging:
            self._advance_all(self._paging.read())
        self._lingering.looked(now)

    def _lose(self, line: ActiveLine) -> None:
        """Forget a line that is no longer ours, in all places; answers to its requests are ignored."""
        if not self._has(line):
            return  # with another of its slots
        line.return_all(self._budget)
        del self._lines[line.id]
        for waiting in (self._unsettled, self._paging, self._lingering, self._pacing, self._resting):
            waiting.lose(line)
        line.run.stopped(line.id, has_more=False)


class Releaser(threading.Thread):
    """Follows up on released lines in a thread of its own, so that a slow Redis delays no line.

    In this order, or a wake-up could be lost: the settle has ended the lease, then the awake mark goes, then the line
    is looked at once more, and woken, or left to its turn, if it has more work.
    """

    def __init__(self, on_failure: Callable[[], object]) -> None:
        super().__init__(name="releaser", daemon=True)
        self._on_failure = on_failure
        self._released: SimpleQueue[list[ActiveLine] | None] = SimpleQueue()
        self.start()

    def release(self, lines: list[ActiveLine]) -> None:
        """Take over lines whose lease has been ended."""
        self._released.put(lines)

    def stop(self) -> None:
        """Finish what was taken over, and end."""
        self._released.put(None)
        self.join()

    def run(self) -> None:
        """Follow up until stopped."""
        try:
            while lines := self._released.get():
                by_queue: dict[str, list[ActiveLine]] = defaultdict(list)
                for line in lines:
                    by_queue[line.claim.queue].append(line)
                for queue, its_lines in by_queue.items():
                    notify.clear_awake(queue, [line.id for line in its_lines])
                due = _still_due([line.id for line in lines])
                for queue, its_lines in by_queue.items():
                    orphans = [line for line in its_lines if not line.run.stopped(line.id, has_more=line.id in due)]
                    notify.wake(queue, [line.id for line in orphans if line.id in due])
        except Exception:
            log.exception("releaser.failed")
            self._on_failure()
            raise
        finally:
            forget_connection()


def _still_due(line_ids: list[int]) -> set[int]:
    try:
        return set(still_due(line_ids))
    except Error as failure:
        log.warning("release.look_failed", reason=failure)
        forget_connection()
        return set()  # the sweep looks again
