"""The event loop: one thread a process runs any number of lines side by side, a round at a time."""

import resource
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog

from broker_project.core.db import forget_connection
from broker_project.core.egress import EgressPolicy
from delivery.callbacks.address import CallbackTerms
from delivery.http.client import GATHER_SECONDS, HttpClient
from delivery.http.transfer import Answer
from delivery.limits import REQUEST_DEADLINE_SECONDS
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import Destination, Outgoing
from delivery.worker.buffer import BodyBudget, RateLimiter
from delivery.worker.line import PATIENT_SECONDS, ActiveLine, Slot
from delivery.worker.pending_settles import LOCKED_SECONDS, DatabaseBackoff, PendingSettles
from delivery.worker.release import Releaser
from delivery.worker.settlements import Settled
from delivery.worker.steps import NotStarted, Read, Reply, RequestSent, Rest, Send, Step, Transform, Wait
from delivery.worker.waits import IdlePoll, PageReader, Parked, RateWait, ScriptWait
from subscriptions.scripting.jobs import Result
from subscriptions.scripting.runner import ScriptRunner

MAX_IN_FLIGHT: Final = 4_000
"""Requests a process has under way at once: 54 KB each, and a file."""
MAX_BESIDE: Final = 2_000
"""How many of them are not the first one of their line: what sends several at a time leaves the other lines theirs."""
MAX_BODY_BYTES: Final = 48 * 1024 * 1024
"""Bodies its lines hold at once: with those of volatile messages a process holds 64 MiB (contract 11.1)."""

log = structlog.get_logger(__name__)

IDLE_SECONDS: Final = 1.0


class EventLoop(threading.Thread):
    """Drives lines until it is stopped; the only thread that touches its client and its lines."""

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
        super().__init__(name="event_loop", daemon=True)
        self.worker = worker
        self.queue_max_in_flight = queue_max_in_flight
        """Messages that each QUEUE sender has under way at a time."""
        self._on_failure = on_failure
        self._client = HttpClient(egress=egress, deadline_seconds=deadline_seconds)
        self._scripts = ScriptRunner()
        self._client.watch_too(self._scripts.fileno())
        self._releaser = Releaser(on_failure)
        self.budget = BodyBudget(MAX_BODY_BYTES)
        self.rate_limiter = RateLimiter()
        self.lines = Rounds(self._client, self._releaser, self.budget, self._scripts, terms)
        self._inbox: list[ActiveLine] = []
        self._inbox_lock = threading.Lock()
        self._stopping = threading.Event()

    def take(self, lines: Sequence[ActiveLine]) -> None:
        """Drive these lines from now on; may be called from any thread."""
        with self._inbox_lock:
            self._inbox += lines
        self._client.interrupt()

    def free_places(self) -> int:
        """Return how many more lines may be taken."""
        lines, beside = self._taken()
        return 0 if self._stopping.is_set() else max(0, MAX_IN_FLIGHT - lines - beside)

    def free_beside(self) -> int:
        """Return how many more requests lines may have under way at a time beside their first one."""
        _, beside = self._taken()
        return max(0, MAX_BESIDE - beside)

    def _taken(self) -> tuple[int, int]:
        """Return how many lines there are, and for how many requests beside the first one of each."""
        lines = [*self.lines.all(), *self._inbox]
        return len(lines), sum(len(line.slots) - 1 for line in lines)

    def stop(self, seconds: float) -> bool:
        """Start nothing new, settle what is under way and let every line go; say whether that was done in time."""
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
            # A fault of ours: better a new process, which mends these lines, than one that drives half of them.
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
    """The lines in hand, and where each of their slots stands.

    Under way, to be settled, to be read for, lingering, waiting for a rate, or at rest. On a database error everything
    is kept and tried again on a new connection. Belongs to the event loop's thread.
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
        self._scripting = ScriptWait(scripts, budget)
        self._lines: dict[int, ActiveLine] = {}
        self._outage = DatabaseBackoff()
        self._unsettled = PendingSettles(self._outage)
        self._paging = PageReader(budget, terms, self._outage)
        self._lingering = IdlePoll()
        self._pacing = RateWait()
        self._resting = Parked()
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._lines)

    def all(self) -> list[ActiveLine]:
        """Return the lines in hand; may be called from any thread."""
        return list(self._lines.values())  # in one go, unlike a loop

    def begin(self, lines: Sequence[ActiveLine]) -> None:
        """Take lines in; one that is here already, under an older epoch, has been lost to the new claim."""
        for line in lines:
            if line.id in self._lines:
                self._lose(self._lines[line.id])
            self._lines[line.id] = line
            self._advance_all(line.slots)

    def answered(self, answers: Sequence[Answer]) -> None:
        """Tell the lines what came of their requests."""
        now = time.monotonic()
        for answer in answers:
            slot = answer.token
            assert isinstance(slot, Slot)  # noqa: S101 - the only tokens there are
            assert slot.started_at  # noqa: S101 - it was started
            if self._has(slot.line):
                slot.line.run.moved_at = now
                self._advance(slot, RequestSent(answer, slot.started_at))

    def ran(self, results: Sequence[tuple[Hashable, Result]]) -> None:
        """Tell the lines what came of their scripts."""
        now = time.monotonic()
        for slot, result in results:
            assert isinstance(slot, Slot)  # noqa: S101 - the only tokens there are
            if self._has(slot.line):
                slot.line.run.moved_at = now
                self._advance(slot, self._scripting.with_room(slot, result))

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
        if now >= self._looked_at + PATIENT_SECONDS:
            self._looked_at = now
            self._give_back_what_hangs(now)
        if self._outage.is_over:
            self._unsettled.take_locked()
        while (self._unsettled or self._paging) and self._outage.is_over:
            self._settle()
            self._read()
            if self._client.is_gathering and not self._paging:
                break  # what these lines send next is settled with the answers about to come

    def patience(self) -> float:
        """Return the seconds after which there is something to do even if no answer comes."""
        now = time.monotonic()
        if self._unsettled or self._paging:
            least = GATHER_SECONDS if self._client.is_gathering and not self._paging else 0.0
            return max(least, self._outage.until - now)
        of_the_clock = (self._lingering.patience(now), self._pacing.patience(now))
        possible = (IDLE_SECONDS, *of_the_clock, self._resting.patience(), self._scripting.patience())
        patience = min(one for one in possible if one is not None)
        return min(patience, LOCKED_SECONDS) if self._unsettled.locked else patience

    def _advance(self, slot: Slot, reply: Reply) -> None:
        self._unsettled.add(slot, slot.advance(reply))

    def _advance_all(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._advance(slot, None)

    def _has(self, line: ActiveLine) -> bool:
        return self._lines.get(line.id) is line

    def _settle(self) -> None:
        let_go: list[ActiveLine] = []
        for slot, step, settled in self._unsettled.settle():
            if settled is None:
                self._lose(slot.line)
            elif self._has(slot.line):
                let_go += self._go_on(slot, step, settled)
        if let_go:
            self._releaser.release(let_go)
        self._client.begin()  # before anything else takes time: each was checked against its lease

    def _go_on(self, slot: Slot, step: Step, settled: Settled) -> list[ActiveLine]:
        """Follow a step that has been settled; return the slot's line if it has been let go."""
        if step.ended and step.ended.status is not DeliveryStatus.DELIVERED:
            log.info("delivery.not_taken", **step.ended.log_fields())
        slot.settled(self._budget, step)
        if isinstance(step, Rest):
            return self._rest(slot)
        self._follow(slot, step, settled)
        return []

    def _follow(self, slot: Slot, step: Step, settled: Settled) -> None:
        match step:
            case Transform(delivery=delivery):
                self._scripting.run(slot, delivery)
            case Wait(seconds=seconds):
                self._pacing.add(slot, seconds)
            case Send(delivery=delivery):
                _learn(slot.line, delivery.destination, settled)
                self._start(slot, delivery, settled.started.get(delivery.id))
            case Read(linger=True) if not slot.line.must_stop():
                self._lingering.add(slot)
            case Read():
                self._paging.add(slot)

    def _rest(self, slot: Slot) -> list[ActiveLine]:
        """Let a slot rest; return its line if that has been let go with it."""
        line = slot.line
        if not self._resting.add(slot):
            return []
        if line.hold and line.is_held:
            log.info("line.held", line_id=line.id, head_id=line.head_id, reason=line.hold.reason, pause=line.hold.pause)
        line.give_all_back(self._budget)
        del self._lines[line.id]
        return [line]

    def _start(self, slot: Slot, delivery: Outgoing, sequence: int | None) -> None:
        line, now = slot.line, time.monotonic()
        if sequence is None and slot.may_be_marked:
            log.warning("event_loop.mark_unknown", line_id=line.id, delivery_id=delivery.id)
            self._lose(line)  # its lease runs out, then it is mended
        elif sequence is None:
            line.return_buffer(self._budget)
            slot.give_back(self._budget)
            self._advance(slot, NotStarted())
        elif not line.fits_the_lease(now):
            self._unsettled.keep([(slot, Send(None, delivery))])  # the settle took long: renew first
        else:
            slot.start(delivery, sequence, at=datetime.now(UTC))
            self._client.start(slot, slot.request(), since=now)

    def _read(self) -> None:
        if self._paging:
            self._advance_all(self._paging.read())

    def _look_again(self, slots: Sequence[Slot], now: float) -> None:
        """Read for the lines that linger, but for those whose turn has ended."""
        for slot in slots:
            if slot.line.must_stop():
                self._advance(slot, None)
            else:
                self._paging.add(slot)
        self._read()
        self._lingering.looked(now)

    def _give_back_what_hangs(self, now: float) -> None:
        for line in self._lines.values():
            if line.is_stuck(now):
                line.return_buffer(self._budget)

    def _lose(self, line: ActiveLine) -> None:
        """Forget a line that is not ours any more, wherever it stands; what it has under way is answered to nobody."""
        if not self._has(line):
            return  # with another of its slots
        line.give_all_back(self._budget)
        del self._lines[line.id]
        self._unsettled.lose(line)
        self._paging.lose(line)
        self._lingering.lose(line)
        self._pacing.lose(line)
        self._resting.lose(line)
        line.run.stopped(line.id, has_more=False)


def _learn(line: ActiveLine, destination: Destination, settled: Settled) -> None:
    """Let the lines of this process know when a subscription with a rate limit may be sent next."""
    wait = settled.waits.get(destination.subscription_id)
    if wait is not None:
        line.rate_limiter.learn(destination, wait, time.monotonic())
