"""A round of the driver: settle all that its lines have ended, read for those that want to, start the next requests."""

import time
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog
from django.db import DatabaseError, Error, InterfaceError, OperationalError

from delivery.batches import Batch
from delivery.hands import BodyBudget, InHand
from delivery.http_client import GATHER_SECONDS, HttpClient
from delivery.lines import DrivenLine
from delivery.lingering import Lingering
from delivery.reading import read_pages
from delivery.releasing import Releaser
from delivery.settlements import Settled
from delivery.statuses import DeliveryStatus
from delivery.steps import Hold, NotStarted, Read, Reply, Rest, Send, Sent, Step, Transform
from delivery.transfers import Answer
from delivery.transforms import job_of
from subscriptions.database import forget_connection
from subscriptions.scripts.jobs import Made, NotRun, Result
from subscriptions.scripts.runner import ScriptRunner

IDLE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.25
"""Pause before a database that failed, or a line that is locked, is asked again; nothing is forgotten meanwhile."""
PATIENT_SECONDS: Final = 1.0
"""After so long without an answer a line gives back what it has in hand: one that hangs must not starve others."""

log = structlog.get_logger(__name__)

Taken = tuple[DrivenLine, Step]


class Rounds:
    """The lines in hand, and where each stands: under way, to be settled, to be read for, or lingering.

    On a database error everything is kept and tried again on a new connection; a settle is safe to repeat, and the
    epoch tells whether the lines are still ours by then. Belongs to the driver's thread.
    """

    def __init__(self, client: HttpClient, releaser: Releaser, budget: BodyBudget, scripts: ScriptRunner) -> None:
        self._client = client
        self._releaser = releaser
        self._budget = budget
        self._scripts = scripts
        self._lines: dict[int, DrivenLine] = {}
        self._steps: list[Taken] = []
        self._locked: list[Taken] = []
        self._reading: list[DrivenLine] = []
        self._lingering = Lingering()
        self._database_asked_at = 0.0
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._lines)

    def begin(self, lines: Sequence[DrivenLine]) -> None:
        """Take lines in; one that is here already, under an older epoch, has been lost to the new claim."""
        for line in lines:
            if line.id in self._lines:
                self._lose(self._lines[line.id])
            self._lines[line.id] = line
            self._advance(line, None)

    def answered(self, answers: Sequence[Answer]) -> None:
        """Tell the lines what came of their requests."""
        now = time.monotonic()
        for answer in answers:
            line = answer.token
            assert isinstance(line, DrivenLine)  # noqa: S101 - the only tokens there are
            assert line.started_at  # noqa: S101 - it was started
            if self._has(line):
                line.run.moved_at = now
                self._advance(line, Sent(answer, line.started_at))

    def ran(self, results: Sequence[tuple[Hashable, Result]]) -> None:
        """Tell the lines what came of their scripts."""
        now = time.monotonic()
        for line, result in results:
            assert isinstance(line, DrivenLine)  # noqa: S101 - the only tokens there are
            if self._has(line):
                line.run.moved_at = now
                self._advance(line, self._with_room(line, result))

    def stop(self) -> None:
        """Start nothing new."""
        for line in self._lines.values():
            line.stopping = True

    def go(self) -> None:
        """Do all that can be done now, until every line waits for an answer, for the database, or for a moment."""
        now = time.monotonic()
        if lines := self._lingering.take_due(now):
            self._look_again(lines, now)
        if now >= self._looked_at + PATIENT_SECONDS:
            self._looked_at = now
            self._give_back_what_hangs(now)
        if now >= self._database_asked_at:
            self._steps, self._locked = self._steps + self._locked, []
        while (self._steps or self._reading) and time.monotonic() >= self._database_asked_at:
            self._settle()
            self._read()
            if self._client.is_gathering and not self._reading:
                break  # what these lines send next is settled with the answers about to come

    def patience(self) -> float:
        """Return the seconds after which there is something to do even if no answer comes."""
        now = time.monotonic()
        if self._steps or self._reading:
            least = GATHER_SECONDS if self._client.is_gathering and not self._reading else 0.0
            return max(least, self._database_asked_at - now)
        patience = self._lingering.patience(now)
        of_scripts = self._scripts.patience()
        patience = min(one for one in (IDLE_SECONDS, patience, of_scripts) if one is not None)
        return min(patience, RETRY_SECONDS) if self._locked else patience

    def _advance(self, line: DrivenLine, reply: Reply) -> None:
        self._steps.append((line, line.advance(reply)))

    def _has(self, line: DrivenLine) -> bool:
        return self._lines.get(line.id) is line

    def _settle(self) -> None:
        steps, self._steps = self._steps, []
        try:
            self._go_on(steps, Batch(steps).settle())
        except (OperationalError, InterfaceError) as failure:
            self._keep(steps)
            self._database_failed(failure)
        except DatabaseError:
            self._settle_apart(steps)
        self._client.begin()  # before anything else takes time: each was checked against its lease

    def _keep(self, steps: list[Taken]) -> None:
        """Settle these again later; whether they have been, nobody knows."""
        for line, step in steps:
            line.may_be_marked = isinstance(step, Send)
        self._steps = steps + self._steps

    def _settle_apart(self, steps: list[Taken]) -> None:
        """Settle line by line after a data error, so that the offender stops and its neighbours go on."""
        for taken in steps:
            line, _ = taken
            try:
                self._go_on([taken], Batch([taken]).settle())
            except (OperationalError, InterfaceError) as failure:
                self._keep([taken])
                self._database_failed(failure)
            except DatabaseError:
                log.exception("driver.line_dropped", line_id=line.id)
                self._lose(line)  # its lease runs out, then it is mended and tried again

    def _go_on(self, steps: list[Taken], settled: Settled) -> None:
        for line, step in steps:
            if line.id in settled.owned:
                if step.ended and step.ended.status is not DeliveryStatus.DELIVERED:
                    log.info("delivery.not_taken", **step.ended.told())
                line.settled(self._budget, step)
                self._follow(line, step, settled)
            elif line.id in settled.locked:
                self._locked.append((line, step))
            else:
                log.warning("driver.fenced", line_id=line.id, epoch=line.claim.epoch)
                self._lose(line)
        let_go = [line for line, step in steps if isinstance(step, Rest) and line.id in settled.owned]
        if let_go:
            self._releaser.release(let_go)

    def _follow(self, line: DrivenLine, step: Step, settled: Settled) -> None:
        match step:
            case Transform(delivery=delivery):
                line.prepare(delivery)
                self._scripts.run(line, job_of(delivery))
            case Send(delivery=delivery):
                self._start(line, delivery, settled.started.get(delivery.id))
            case Read(linger=True) if not line.must_stop():
                self._lingering.add(line)
            case Read():
                self._reading.append(line)
            case Rest(hold=hold):
                self._let_go(line, hold)

    def _let_go(self, line: DrivenLine, hold: Hold | None) -> None:
        if hold:
            log.info("line.held", line_id=line.id, head_id=line.head_id, reason=hold.reason, pause=hold.pause)
        line.give_all_back(self._budget)
        del self._lines[line.id]

    def _start(self, line: DrivenLine, delivery: InHand, sequence: int | None) -> None:
        if sequence is None and line.may_be_marked:
            log.warning("driver.mark_unknown", line_id=line.id, delivery_id=delivery.id)
            self._lose(line)  # its lease runs out, then it is mended
        elif sequence is None:
            line.give_all_back(self._budget)
            self._advance(line, NotStarted())
        elif not line.fits_the_lease():
            self._keep([(line, Send(None, delivery))])  # the settle took long: renew first
        else:
            line.start(delivery, sequence, at=datetime.now(UTC))
            self._client.start(line, line.request())

    def _with_room(self, line: DrivenLine, result: Result) -> Result:
        """Return a script's result, `NotRun` where the process holds too many bodies for what it made."""
        if isinstance(result, Made) and line.has_room(len(result.body or b""), self._budget):
            return result
        if isinstance(result, Made | NotRun):
            line.give_all_back(self._budget)
            return NotRun()
        return result

    def _read(self) -> None:
        lines, self._reading = self._reading, []
        if not lines:
            return
        try:
            hands = read_pages([line.wanted() for line in lines], self._budget)
        except Error as failure:
            self._reading = lines + self._reading
            self._database_failed(failure)
            return
        for line in lines:
            line.receive(hands[line.id], self._budget)
            self._advance(line, None)

    def _look_again(self, lines: Sequence[DrivenLine], now: float) -> None:
        """Read for the lines that linger, but for those whose turn has ended."""
        for line in lines:
            if line.must_stop():
                self._advance(line, None)
            else:
                self._reading.append(line)
        self._read()
        self._lingering.looked(now)

    def _give_back_what_hangs(self, now: float) -> None:
        for line in self._lines.values():
            if line.under_way and now >= line.started_mono + PATIENT_SECONDS:
                line.give_hand_back(self._budget)

    def _lose(self, line: DrivenLine) -> None:
        """Forget a line that is not ours any more, wherever it stands; what it has under way is answered to nobody."""
        line.give_all_back(self._budget)
        del self._lines[line.id]
        self._steps = [taken for taken in self._steps if taken[0] is not line]
        self._locked = [taken for taken in self._locked if taken[0] is not line]
        self._reading = [other for other in self._reading if other is not line]
        self._lingering.lose(line)
        line.run.stopped(line.id, has_more=False)

    def _database_failed(self, failure: Exception) -> None:
        log.warning("driver.database_failed", reason=str(failure))
        self._database_asked_at = time.monotonic() + RETRY_SECONDS
        forget_connection()
