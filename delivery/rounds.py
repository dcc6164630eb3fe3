"""A round of the driver: settle all that its lines have ended, read for those that want to, start the next requests."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import structlog
from django.db import DatabaseError, Error, InterfaceError, OperationalError

from delivery.batches import Batch
from delivery.hands import BodyBudget, Hand, InHand
from delivery.http_client import HttpClient
from delivery.lines import DrivenLine
from delivery.pages import Wanted
from delivery.reading import read_pages
from delivery.releasing import Releaser
from delivery.settlements import Settled
from delivery.steps import NotStarted, Read, Reply, Rest, Send, Sent, Step
from delivery.transfers import Answer
from delivery.webhooks import Numbers, webhook_request
from subscriptions.database import forget_connection

LINGER_SECONDS: Final = 0.025
"""How long a line without work waits for more before it is let go, together with others."""
IDLE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.25
"""Pause before a database that failed is asked again; nothing that is to be settled is forgotten meanwhile."""

log = structlog.get_logger(__name__)

Taken = tuple[DrivenLine, Step]


class Rounds:
    """The lines in hand, and where each stands: under way, to be settled, to be read for, or lingering.

    On a database error everything is kept and tried again on a new connection; a settle is safe to repeat, and the
    epoch tells whether the lines are still ours by then. Belongs to the driver's thread.
    """

    def __init__(self, client: HttpClient, releaser: Releaser, budget: BodyBudget) -> None:
        self._client = client
        self._releaser = releaser
        self._budget = budget
        self._lines: set[DrivenLine] = set()
        self._steps: list[Taken] = []
        self._reading: list[DrivenLine] = []
        self._lingering: list[DrivenLine] = []
        self._linger_until = 0.0
        self._database_asked_at = 0.0

    def __len__(self) -> int:
        return len(self._lines)

    def begin(self, lines: Sequence[DrivenLine]) -> None:
        """Take lines in."""
        self._lines.update(lines)
        for line in lines:
            self._advance(line, None)

    def answered(self, answers: Sequence[Answer]) -> None:
        """Tell the lines what came of their requests."""
        for answer in answers:
            line = answer.token
            assert isinstance(line, DrivenLine)  # noqa: S101 - the only tokens there are
            assert line.started_at  # noqa: S101 - it was started
            self._advance(line, Sent(answer, line.started_at))

    def stop(self) -> None:
        """Start nothing new."""
        for line in self._lines:
            line.stopping = True

    def go(self) -> None:
        """Do all that can be done now, until every line waits for an answer, for the database, or for a moment."""
        if self._lingering and time.monotonic() >= self._linger_until:
            self._reading, self._lingering = self._reading + self._lingering, []
        while (self._steps or self._reading) and time.monotonic() >= self._database_asked_at:
            self._settle()
            self._read()

    def patience(self) -> float:
        """Return the seconds after which there is something to do even if no answer comes."""
        now = time.monotonic()
        if self._steps or self._reading:
            return max(0.0, self._database_asked_at - now)
        return max(0.0, self._linger_until - now) if self._lingering else IDLE_SECONDS

    def _advance(self, line: DrivenLine, reply: Reply) -> None:
        self._steps.append((line, line.advance(reply)))

    def _settle(self) -> None:
        steps, self._steps = self._steps, []
        try:
            self._go_on(steps, Batch(steps).settle())
        except (OperationalError, InterfaceError) as failure:
            self._keep(steps)
            self._database_failed(failure)
        except DatabaseError:
            self._settle_apart(steps)

    def _keep(self, steps: list[Taken]) -> None:
        """Settle these again later; whether they have been, nobody knows."""
        for line, step in steps:
            line.may_be_marked = isinstance(step, Send)
        self._steps = steps + self._steps

    def _settle_apart(self, steps: list[Taken]) -> None:
        """Settle line by line after a data error, so that the offender stops and its neighbours go on."""
        for taken in steps:
            line, step = taken
            try:
                self._go_on([taken], Batch([taken]).settle())
            except (OperationalError, InterfaceError) as failure:
                self._keep([taken])
                self._database_failed(failure)
            except DatabaseError:
                log.exception("driver.line_dropped", line_id=line.id)
                self._drop(line, step)  # its lease runs out, then it is mended and tried again

    def _go_on(self, steps: list[Taken], settled: Settled) -> None:
        for line, step in steps:
            if step.ended and line.under_way:
                self._budget.give_back(line.under_way.size)
                line.under_way = None
            if line.id in settled.owned:
                self._follow(line, step, settled)
            else:
                log.warning("driver.fenced", line_id=line.id, epoch=line.claim.epoch)
                self._drop(line, step)
        let_go = [line for line, step in steps if isinstance(step, Rest) and line.id in settled.owned]
        if let_go:
            self._releaser.release(let_go)

    def _follow(self, line: DrivenLine, step: Step, settled: Settled) -> None:
        match step:
            case Send(delivery=delivery):
                self._start(line, delivery, settled.started.get(delivery.id))
            case Read(linger=True) if not line.must_stop():
                self._linger(line)
            case Read():
                self._reading.append(line)
            case Rest():
                self._forget(line)

    def _start(self, line: DrivenLine, delivery: InHand, sequence: int | None) -> None:
        if sequence is None and line.may_be_marked:
            log.warning("driver.mark_unknown", line_id=line.id, delivery_id=delivery.id)
            self._drop(line, Send(None, delivery))  # its lease runs out, then it is mended
        elif sequence is None:
            self._budget.give_back(delivery.size)
            self._give_back_hand(line)
            self._advance(line, NotStarted())
        elif not line.fits_the_lease():
            self._keep([(line, Send(None, delivery))])  # the settle took long: renew first
        else:
            line.may_be_marked = False
            line.last_sequence = max(line.last_sequence, sequence)
            line.under_way, line.started_at = delivery, datetime.now(UTC)
            numbers = Numbers(delivery.id, sequence, delivery.attempts + 1, delivery.uncertain)
            timestamp = int(line.started_at.timestamp())
            request = webhook_request(delivery.content, delivery.destination, numbers, timestamp=timestamp)
            self._client.start(line, request)

    def _read(self) -> None:
        lines, self._reading = self._reading, []
        if not lines:
            return
        try:
            hands = read_pages([Wanted(line.id, line.head_id, line.page_size) for line in lines], self._budget)
        except Error as failure:
            self._reading = lines + self._reading
            self._database_failed(failure)
            return
        for line in lines:
            self._give_back_hand(line)
            line.receive(hands[line.id])
            self._advance(line, None)

    def _linger(self, line: DrivenLine) -> None:
        if not self._lingering:
            self._linger_until = time.monotonic() + LINGER_SECONDS
        self._lingering.append(line)

    def _drop(self, line: DrivenLine, step: Step) -> None:
        if isinstance(step, Send):
            self._budget.give_back(step.delivery.size)
        self._forget(line)
        line.run.stopped(line.id, has_more=False)

    def _forget(self, line: DrivenLine) -> None:
        if line.under_way:
            self._budget.give_back(line.under_way.size)
            line.under_way = None
        self._give_back_hand(line)
        self._lines.discard(line)

    def _give_back_hand(self, line: DrivenLine) -> None:
        self._budget.give_back(line.hand.bytes)
        line.hand = Hand()

    def _database_failed(self, failure: Exception) -> None:
        log.warning("driver.database_failed", reason=str(failure))
        self._database_asked_at = time.monotonic() + RETRY_SECONDS
        forget_connection()
