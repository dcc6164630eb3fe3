"""A worker's rounds: claim lines, settle what ended, mark and send what is next, read pages, release lines."""

import math
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Final

import structlog
from django.db import Error

from broker_project.core import boot_clock
from broker_project.core.database_clock import DATABASE_CLOCK
from delivery.callbacks.address import CallbackTerms
from delivery.dispatch.claim import claim
from delivery.dispatch.notify import HintListener, Link
from delivery.http.client import HttpClient
from delivery.http.transfer import Answer
from delivery.limits import (
    HANGS_SECONDS,
    LINES_PER_TASK,
    LOCKED_RETRY_SECONDS,
    LOOK_SECONDS,
    LOOK_SHARE,
    MAX_EXTRA_SLOTS,
    MAX_IN_FLIGHT,
    MAX_PROCESS_BYTES,
    MIN_IDLE_SECONDS,
    SETTLE_LATER_SECONDS,
    STUCK_SECONDS,
)
from delivery.webhook.request import Outgoing, add_sequence, request_of
from delivery.webhook.transform import job_for
from delivery.worker.buffer import BodyBudget, RateLimiter
from delivery.worker.isolation import Isolation
from delivery.worker.leases import Leases, Released, Releaser, Turns, active_line, idle_seconds, release_of
from delivery.worker.line import ActiveLine
from delivery.worker.pages import DatabaseBackoff
from delivery.worker.round_trip import RoundTrip
from delivery.worker.slots import Read, Reply, RequestSent, Rest, Send, Slot, Slots, SlotState, Transform, Wait
from subscriptions.scripting.jobs import Result
from subscriptions.scripting.runner import ScriptRunner

log = structlog.get_logger(__name__)

REST_SECONDS: Final = 1.0
"""How long the loop waits if nothing is to be done."""
NO_LINK: Final = Link()
"""Of lines that no task has asked for: the tasks that follow begin a chain."""


class Rounds:
    """The lines of a worker and their slots; belongs to the event loop's thread.

    On a database error everything stays where it is and is tried again on a new connection.
    """

    def __init__(
        self,
        client: HttpClient,
        releaser: Releaser,
        terms: CallbackTerms,
        listener: HintListener,
        *,
        worker: str,
        queue_max_in_flight: int,
    ) -> None:
        self.worker = worker
        self.queue_max_in_flight = queue_max_in_flight
        """Messages that each QUEUE sender has in flight."""
        self.rate_limiter = RateLimiter()
        self.isolation = Isolation()
        self._wanted: dict[int, tuple[str, Link]] = {}
        """Lines to claim, with their Celery queue and the task that asked for them."""
        self._is_stopping = False
        self._client = client
        self._listener = listener
        self._releaser = releaser
        self.scripts: ScriptRunner | None = None
        """Made when the first script comes."""
        self.budget = BodyBudget(MAX_PROCESS_BYTES)
        self._lines: dict[int, ActiveLine] = {}
        self._extra_slots = 0
        """Slots that they have beyond the first of each."""
        self.leases = Leases(self._lines)
        self._slots = Slots()
        self._backoff = DatabaseBackoff()
        self._round_trip = RoundTrip(self._slots, self._backoff, self.budget, terms)
        self._round_trip_in = math.inf
        """After how many seconds the database is to be asked, as the last round has left it."""
        self._look_at = 0.0
        """Time since boot of the next look for new work, while no hints can come."""
        self._rate_at = math.inf
        """Time since boot from which on an idle slot may send what its line has left out."""
        self._turns = Turns()
        self._stuck_at = 0.0
        """Time since boot at which buffers were last taken from lines that hang."""

    def __len__(self) -> int:
        return len(self._lines)

    def all(self) -> list[ActiveLine]:
        """Return the lines; may be called from any thread."""
        return list(self._lines.values())  # in one go, unlike a loop

    def want(self, queue: str, line_ids: Sequence[int], link: Link | None) -> None:
        """Let lines know of new work: those that are here and idle read.

        With a `link` all are claimed, which is refused to those that are here, unless their lease has run out. Without
        one it was a hint: lines that are here no more are owned and claimed again.
        """
        for line_id in line_ids:
            if line := self._lines.get(line_id):
                line.has_hint = True
                for slot in [one for one in line.slots if one.state is SlotState.IDLE]:
                    self._slots.move(slot, SlotState.READING)
        distinct = dict.fromkeys(line_ids)
        unknown = [line_id for line_id in distinct if line_id not in self._wanted]
        if link:
            self._wanted |= dict.fromkeys(unknown, (queue, link))
            link.lines_left = len(distinct)
            self._releaser.let_go(link, len(distinct) - len(unknown))
        elif late := [line_id for line_id in unknown if line_id not in self._lines]:
            self._releaser.claim_again(queue, late)

    def claim(self) -> None:
        """Claim what is wanted and free, as far as there are places; let others hear of the rest."""
        before = boot_clock.since_boot()
        places, extra_slots = self.free_places()
        wanted = dict(islice(self._wanted.items(), LINES_PER_TASK))
        try:
            claims = claim([*wanted][:places], worker=self.worker) if places else []
        except Error as failure:
            self._backoff.begin(failure)
            return
        for line_id in wanted:
            del self._wanted[line_id]
        lines: list[ActiveLine] = []
        for claimed in claims:
            line = active_line(
                claimed,
                wanted.pop(claimed.line_id)[1],
                before,
                queue_max_in_flight=self.queue_max_in_flight,
                extra_slots=extra_slots,
                rate_limiter=self.rate_limiter,
                isolation=self.isolation,
            )
            extra_slots -= len(line.slots) - 1
            lines.append(line)
        refused = [Released(one, *of) for one, of in wanted.items() if one not in self._lines]
        self._releaser.release(refused)
        for _, link in wanted.values():
            self._releaser.let_go(link)
        self.begin(lines)

    def free_places(self) -> tuple[int, int]:
        """Return how many more lines may be claimed, and how many more slots they may have beyond their first."""
        places = 0 if self._is_stopping else max(0, MAX_IN_FLIGHT - len(self._lines) - self._extra_slots)
        return places, max(0, MAX_EXTRA_SLOTS - self._extra_slots)

    def begin(self, lines: Sequence[ActiveLine]) -> None:
        """Take lines in; one that is here already, under an older epoch, has been lost to the new claim."""
        for line in lines:
            if line.id in self._lines:
                self._lose(self._lines[line.id])
            self._lines[line.id] = line
            self._extra_slots += len(line.slots) - 1
            self._turns.add(line)
            self._slots.add(line)
            for slot in line.slots:
                self._advance(slot, None)

    def answered(self, answers: Sequence[Answer]) -> None:
        """Resume the slots whose requests have been answered; one that was abandoned never is."""
        for answer in answers:
            slot = answer.token
            assert isinstance(slot, Slot)  # noqa: S101 - the only tokens there are
            assert slot.started_at  # noqa: S101 - it was started
            if not self._has(slot.line):
                continue
            if answer.failure and answer.failure.is_abandoned:
                self.leases.lapse(slot.line)
            else:
                slot.resumes_at = boot_clock.since_boot() + SETTLE_LATER_SECONDS
                self._advance(slot, RequestSent(answer, slot.started_at))

    def ran(self, results: Sequence[tuple[Hashable, Result]]) -> None:
        """Resume the slots whose scripts have ended."""
        for slot, result in results:
            assert isinstance(slot, Slot)  # noqa: S101 - the only tokens there are
            if self._has(slot.line):
                self._advance(slot, slot.with_room(self.budget, result))

    def stop(self) -> None:
        """Start nothing new."""
        self._is_stopping = True
        for line in self._lines.values():
            line.stopping = True

    def go(self) -> None:
        """Do all that can be done now, until every line waits for an answer, for the database, or for a moment."""
        now = boot_clock.since_boot()
        self._resume(now)
        self._renew()
        if self._wanted and self._backoff.is_over:
            self.claim()
        self._end_turns(now)
        if now >= self._stuck_at + STUCK_SECONDS:
            self._stuck_at = now
            for line in self._lines.values():
                if all(slot.has_waited(now, STUCK_SECONDS) for slot in line.slots):
                    line.return_buffer(self.budget)  # it must not starve others
        if self._backoff.is_over:
            for slot in self._slots[SlotState.LOCKED]:
                self._slots.move(slot, SlotState.SETTLING)
        while (wait := self._seconds_to_round_trip()) <= 0.0 and self._backoff.is_over:
            self._make_round_trip()
        self._round_trip_in = wait

    def patience(self) -> float:
        """Return the seconds after which there is something to do even if no answer comes."""
        now = boot_clock.since_boot()
        trip = 0.0 if self._wanted else self._round_trip_in
        waits = [REST_SECONDS, max(trip, self._backoff.until - now), self._rate_at - now]
        if self.scripts and (scripts := self.scripts.patience()) is not None:
            waits.append(scripts)
        if idle := self._slots[SlotState.IDLE]:  # the first has been so for longest
            ends_at = idle[0].idle_since + idle_seconds(len(self), self._extra_slots)
            waits.append((ends_at if self._listener.is_connected else self._look_at) - now)
        if self._slots.any_in(SlotState.PARKED):
            waits.append(HANGS_SECONDS)
        if self._slots.any_in(SlotState.LOCKED):
            waits.append(LOCKED_RETRY_SECONDS)
        waits += [slot.resumes_at - now for slot in self._slots[SlotState.PACING]]
        return max(0.0, min(waits))

    def _seconds_to_round_trip(self) -> float:
        """Return how long the database need not be asked: all waits for answers about to come, records for company."""
        settling, is_reading = self._slots[SlotState.SETTLING], self._slots.any_in(SlotState.READING)
        if not (settling or is_reading):
            return math.inf
        gathers = self._client.gather_seconds
        if is_reading or not all(slot.may_settle_later for slot in settling):
            return gathers
        return max(gathers, settling[0].resumes_at - boot_clock.since_boot())

    def _renew(self) -> None:
        """Renew leases if it is time to, and lose the lines whose leases have ended.

        All are lost where the database did not answer: only another epoch makes sure that nothing follows.
        """
        lost = self.all() if self._backoff.is_in_doubt else self.leases.lost()
        self._backoff.is_in_doubt = False
        for line in lost:
            self._lose(line)
        try:
            for line in self.leases.renew() if self._backoff.is_over else ():
                self._lose(line)
        except Error as failure:
            self._backoff.begin(failure)

    def _has(self, line: ActiveLine) -> bool:
        return self._lines.get(line.id) is line

    def _make_round_trip(self) -> None:
        released: list[Released] = []
        for settled in self._round_trip.settle():
            if isinstance(settled, ActiveLine):
                self._lose(settled)
            elif self._has((slot := settled).line):
                slot.settled(self.budget)
                self._follow(slot)
                if all(other.state is SlotState.PARKED for other in slot.line.slots):
                    released.append(release_of(slot.line))
                    self._forget(slot.line)
        if released:
            self._releaser.release(released)
        self._client.begin()  # before anything else takes time: each was checked against its lease
        for slot in self._round_trip.pages.received():
            self._advance(slot, None)
        self._client.begin()
        for line in self._round_trip.pages.unmark():
            self._lose(line)  # its lease runs out, then it is recovered

    def _advance(self, slot: Slot, reply: Reply) -> None:
        """Resume a slot; what it wants next is settled, unless its page has marked it: that goes out at once."""
        slot.waiting_since = None
        slot.step = slot.generator.send(reply)
        self._slots.move(slot, SlotState.SETTLING)
        if (sequence := slot.marked_as) is not None:
            slot.sequence = sequence
            self._follow(slot)

    def _follow(self, slot: Slot) -> None:
        """Let a slot wait for what its step, which has been settled, asks for."""
        match slot.step:
            case Send(delivery=delivery):
                self._start(slot, delivery)
            case Transform(delivery=delivery):
                slot.prepare(delivery)
                self._slots.move(slot, SlotState.TRANSFORMING)
                if not self.scripts:
                    self.scripts = ScriptRunner()
                    self._client.watch_too(self.scripts.fileno())
                self.scripts.run(slot, job_for(delivery.id, delivery.content, delivery.destination))
            case Wait(seconds=seconds):
                self._slots.move(slot, SlotState.PACING)
                slot.resumes_at = boot_clock.since_boot() + seconds
            case Read() if slot.line.reads(slot.step):
                self._slots.move(slot, SlotState.READING)
            case Read():
                self._slots.move(slot, SlotState.IDLE)
                slot.idle_since = boot_clock.since_boot()
                self._rate_at = min(self._rate_at, slot.line.left_out_until)
            case Rest():
                self._slots.move(slot, SlotState.PARKED)

    def _forget(self, line: ActiveLine) -> None:
        line.return_buffer(self.budget)
        self.isolation.drop(line)
        for slot in line.slots:
            slot.give_back(self.budget)
        del self._lines[line.id]
        self._extra_slots -= len(line.slots) - 1
        self._slots.drop(line)
        self._releaser.let_go(line.link)

    def _start(self, slot: Slot, delivery: Outgoing) -> None:
        line, sequence, now = slot.line, slot.sequence, boot_clock.since_boot()
        if sequence is None:
            self._advance(slot, line.refused(slot, self.budget))
        elif now >= line.lease_ends_at:
            slot.may_be_marked = True  # it is renewed first
            self._slots.move(slot, SlotState.LOCKED)
        else:
            self._slots.move(slot, SlotState.IN_FLIGHT)
            started_at = datetime.fromtimestamp(DATABASE_CLOCK.time(), UTC)
            slot.start(delivery, sequence, at=started_at)
            if delivery.needs_isolation:
                self.isolation.start(slot, delivery, sequence, started_at)
                return
            assert isinstance(slot.step, Send)  # noqa: S101 - the only step that is started
            request, signed_at = slot.step.request, int(started_at.timestamp())
            if request is None or request.signed_at != signed_at:  # so the attempt says when it was signed
                request = request_of(delivery, signed_at)
            add_sequence(request, sequence)
            self._client.start(slot, request, until=now + delivery.destination.timeout_seconds, lease=line)

    def _resume(self, now: float) -> None:
        """Resume what has waited long enough for its rate, and what rests in a line that hangs (contract 6.6)."""
        for slot in self._slots[SlotState.PACING]:
            if slot.resumes_at <= now or slot.line.stopping:
                self._advance(slot, None)
        if now >= self._rate_at:
            left_out = {slot: slot.line.left_out_until for slot in self._slots[SlotState.IDLE]}
            for slot in [one for one, until in left_out.items() if until <= now]:
                self._slots.move(slot, SlotState.READING)
            self._rate_at = min((until for until in left_out.values() if until > now), default=math.inf)
        hanging: dict[ActiveLine, bool] = {}
        for slot in self._slots[SlotState.PARKED]:
            if (line := slot.line) not in hanging:
                hanging[line] = (line.hangs(now) or line.lacks_due()) and not line.must_stop()
            if hanging[slot.line] and slot.line.has_room(slot):
                self._advance(slot, None)

    def _end_turns(self, now: float) -> None:
        """Let lines stop that have been here or idle for long; while no hints can come, let the idle ones look."""
        self._turns.end(now, self._has)
        ending = {slot.line for slot in self._slots[SlotState.PARKED] if slot.line.must_stop()}
        for slot in [one for line in ending for one in line.slots if one.state is SlotState.IDLE]:
            self._advance(slot, None)
        looks = not self._listener.is_connected and now >= self._look_at
        longest = idle_seconds(len(self), self._extra_slots)
        for slot in self._slots[SlotState.IDLE]:
            line, idle_for = slot.line, now - slot.idle_since
            is_over = idle_for >= (MIN_IDLE_SECONDS if line.holds else longest)  # the next claim reads ended pauses
            if not (is_over or looks or self._is_stopping):
                if idle_for < MIN_IDLE_SECONDS:
                    break  # the others have been idle for less time
                continue
            has_keys = bool(line.busy_keys) and line.buffer.has_more  # then that this slot is idle says nothing
            line.is_over |= is_over and not line.is_waiting and not has_keys
            if line.must_stop():
                self._advance(slot, None)
            else:
                self._slots.move(slot, SlotState.READING)
        if looks and self._slots.any_in(SlotState.READING):
            self._make_round_trip()
            self._look_at = boot_clock.since_boot() + max(LOOK_SECONDS, (boot_clock.since_boot() - now) / LOOK_SHARE)

    def _lose(self, line: ActiveLine) -> None:
        """Forget a line that is no longer ours, and end its requests: another worker may send them again."""
        if not self._has(line):
            return  # with another of its slots
        log.warning("event_loop.line_lost", line_id=line.id, epoch=line.claim.epoch)
        self._client.abandon({slot for slot in line.slots if slot.state is SlotState.IN_FLIGHT})
        self._forget(line)
        self._releaser.release([Released(line.id, line.claim.queue, line.link)])
