"""A round of the driver: settle all that its lines have ended, read for those that want to, start the next requests."""

import time
from collections.abc import Hashable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog

from delivery.callbacks.terms import CallbackTerms
from delivery.http.client import GATHER_SECONDS, HttpClient
from delivery.http.transfer import Answer
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import Destination
from delivery.worker.buffer import BodyBudget, InHand
from delivery.worker.line import PATIENT_SECONDS, DrivenLine, Strand
from delivery.worker.lingering import Lingering
from delivery.worker.outages import LOCKED_SECONDS, Outage
from delivery.worker.pacing import Pacing
from delivery.worker.pending_settles import Unsettled
from delivery.worker.release import Releaser
from delivery.worker.resting import Resting
from delivery.worker.scripting import Scripting
from delivery.worker.settlements import Settled
from delivery.worker.steps import NotStarted, Read, Reply, Rest, Send, Sent, Step, Transform, Wait
from delivery.worker.waits import Paging
from subscriptions.scripting.jobs import Result
from subscriptions.scripting.runner import ScriptRunner

IDLE_SECONDS: Final = 1.0

log = structlog.get_logger(__name__)


class Rounds:
    """The lines in hand, and where each of their strands stands.

    Under way, to be settled, to be read for, lingering, waiting for a rate, or at rest. On a database error everything
    is kept and tried again on a new connection. Belongs to the driver's thread.
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
        self._scripting = Scripting(scripts, budget)
        self._lines: dict[int, DrivenLine] = {}
        self._outage = Outage()
        self._unsettled = Unsettled(self._outage)
        self._paging = Paging(budget, terms, self._outage)
        self._lingering = Lingering()
        self._pacing = Pacing()
        self._resting = Resting()
        self._looked_at = 0.0

    def __len__(self) -> int:
        return len(self._lines)

    def all(self) -> list[DrivenLine]:
        """Return the lines in hand; may be called from any thread."""
        return list(self._lines.values())  # in one go, unlike a loop

    def begin(self, lines: Sequence[DrivenLine]) -> None:
        """Take lines in; one that is here already, under an older epoch, has been lost to the new claim."""
        for line in lines:
            if line.id in self._lines:
                self._lose(self._lines[line.id])
            self._lines[line.id] = line
            self._advance_all(line.strands)

    def answered(self, answers: Sequence[Answer]) -> None:
        """Tell the lines what came of their requests."""
        now = time.monotonic()
        for answer in answers:
            strand = answer.token
            assert isinstance(strand, Strand)  # noqa: S101 - the only tokens there are
            assert strand.started_at  # noqa: S101 - it was started
            if self._has(strand.line):
                strand.line.run.moved_at = now
                self._advance(strand, Sent(answer, strand.started_at))

    def ran(self, results: Sequence[tuple[Hashable, Result]]) -> None:
        """Tell the lines what came of their scripts."""
        now = time.monotonic()
        for strand, result in results:
            assert isinstance(strand, Strand)  # noqa: S101 - the only tokens there are
            if self._has(strand.line):
                strand.line.run.moved_at = now
                self._advance(strand, self._scripting.with_room(strand, result))

    def stop(self) -> None:
        """Start nothing new."""
        for line in self._lines.values():
            line.stopping = True

    def go(self) -> None:
        """Do all that can be done now, until every line waits for an answer, for the database, or for a moment."""
        now = time.monotonic()
        self._advance_all(self._resting.take_called(now))
        self._advance_all(self._pacing.take_due(now))
        if strands := self._lingering.take_due(now):
            self._look_again(strands, now)
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

    def _advance(self, strand: Strand, reply: Reply) -> None:
        self._unsettled.add(strand, strand.advance(reply))

    def _advance_all(self, strands: Iterable[Strand]) -> None:
        for strand in strands:
            self._advance(strand, None)

    def _has(self, line: DrivenLine) -> bool:
        return self._lines.get(line.id) is line

    def _settle(self) -> None:
        let_go: list[DrivenLine] = []
        for strand, step, settled in self._unsettled.settle():
            if settled is None:
                self._lose(strand.line)
            elif self._has(strand.line):
                let_go += self._go_on(strand, step, settled)
        if let_go:
            self._releaser.release(let_go)
        self._client.begin()  # before anything else takes time: each was checked against its lease

    def _go_on(self, strand: Strand, step: Step, settled: Settled) -> list[DrivenLine]:
        """Follow a step that has been settled; return the strand's line if it has been let go."""
        if step.ended and step.ended.status is not DeliveryStatus.DELIVERED:
            log.info("delivery.not_taken", **step.ended.told())
        strand.settled(self._budget, step)
        if isinstance(step, Rest):
            return self._rest(strand)
        self._follow(strand, step, settled)
        return []

    def _follow(self, strand: Strand, step: Step, settled: Settled) -> None:
        match step:
            case Transform(delivery=delivery):
                self._scripting.run(strand, delivery)
            case Wait(seconds=seconds):
                self._pacing.add(strand, seconds)
            case Send(delivery=delivery):
                _learn(strand.line, delivery.destination, settled)
                self._start(strand, delivery, settled.started.get(delivery.id))
            case Read(linger=True) if not strand.line.must_stop():
                self._lingering.add(strand)
            case Read():
                self._paging.add(strand)

    def _rest(self, strand: Strand) -> list[DrivenLine]:
        """Let a strand rest; return its line if that has been let go with it."""
        line = strand.line
        if not self._resting.add(strand):
            return []
        if line.hold and line.is_held:
            log.info("line.held", line_id=line.id, head_id=line.head_id, reason=line.hold.reason, pause=line.hold.pause)
        line.give_all_back(self._budget)
        del self._lines[line.id]
        return [line]

    def _start(self, strand: Strand, delivery: InHand, sequence: int | None) -> None:
        line, now = strand.line, time.monotonic()
        if sequence is None and strand.may_be_marked:
            log.warning("driver.mark_unknown", line_id=line.id, delivery_id=delivery.id)
            self._lose(line)  # its lease runs out, then it is mended
        elif sequence is None:
            line.give_hand_back(self._budget)
            strand.give_back(self._budget)
            self._advance(strand, NotStarted())
        elif not line.fits_the_lease(now):
            self._unsettled.keep([(strand, Send(None, delivery))])  # the settle took long: renew first
        else:
            strand.start(delivery, sequence, at=datetime.now(UTC))
            self._client.start(strand, strand.request(), since=now)

    def _read(self) -> None:
        if self._paging:
            self._advance_all(self._paging.read())

    def _look_again(self, strands: Sequence[Strand], now: float) -> None:
        """Read for the lines that linger, but for those whose turn has ended."""
        for strand in strands:
            if strand.line.must_stop():
                self._advance(strand, None)
            else:
                self._paging.add(strand)
        self._read()
        self._lingering.looked(now)

    def _give_back_what_hangs(self, now: float) -> None:
        for line in self._lines.values():
            if line.is_stuck(now):
                line.give_hand_back(self._budget)

    def _lose(self, line: DrivenLine) -> None:
        """Forget a line that is not ours any more, wherever it stands; what it has under way is answered to nobody."""
        if not self._has(line):
            return  # with another of its strands
        line.give_all_back(self._budget)
        del self._lines[line.id]
        self._unsettled.lose(line)
        self._paging.lose(line)
        self._lingering.lose(line)
        self._pacing.lose(line)
        self._resting.lose(line)
        line.run.stopped(line.id, has_more=False)


def _learn(line: DrivenLine, destination: Destination, settled: Settled) -> None:
    """Let the lines of this process know when a subscription with a rate limit may be sent next."""
    wait = settled.waits.get(destination.subscription_id)
    if wait is not None:
        line.paces.learn(destination, wait, time.monotonic())
