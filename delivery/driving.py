"""The driver: one thread and one event loop a process, that drives any number of lines side by side.

A round collects the answers that came, settles them all in one statement, and only then starts the next requests.
"""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import structlog
from django.db import DatabaseError, Error, InterfaceError, OperationalError

from delivery.batches import Batch
from delivery.claiming import DEADLINE_SECONDS
from delivery.hands import BodyBudget, Hand, InHand
from delivery.http_client import HttpClient
from delivery.lines import DrivenLine, NotStarted, Read, Reply, Rest, Send, Sent, Step
from delivery.reading import Wanted, read_pages
from delivery.releasing import Releaser
from delivery.settling import Settled
from delivery.webhooks import Numbers, webhook_request
from subscriptions.database import forget_connection

MOST_LINES: Final = 4_000
"""Lines a process drives at once: 54 KB each while a request is under way."""
MOST_BODY_BYTES: Final = 64 * 1024 * 1024
"""Bodies a process holds at once (behaviour 11.1)."""
LINGER_SECONDS: Final = 0.025
"""How long a line without work waits for more before it is let go, together with others."""
IDLE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.25
"""Pause before a database that failed is asked again; nothing that is to be settled is forgotten meanwhile."""

log = structlog.get_logger(__name__)

Taken = tuple[DrivenLine, Step]


class Driver(threading.Thread):
    """Drives lines until it is stopped; the only thread that touches its client and its lines.

    On a database error everything is kept and tried again on a new connection; a settle is safe to repeat, and the
    epoch tells whether the lines are still ours by then.
    """

    def __init__(
        self,
        *,
        worker: str,
        on_failure: Callable[[], object] = lambda: None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        super().__init__(name="driver", daemon=True)
        self.worker = worker
        self._on_failure = on_failure
        self._client = HttpClient(deadline_seconds=deadline_seconds)
        self._releaser = Releaser()
        self._budget = BodyBudget(MOST_BODY_BYTES)
        self._inbox: list[DrivenLine] = []
        self._inbox_lock = threading.Lock()
        self._lines: set[DrivenLine] = set()
        self._steps: list[Taken] = []
        self._reading: list[DrivenLine] = []
        self._lingering: list[DrivenLine] = []
        self._linger_until = 0.0
        self._database_asked_at = 0.0
        self._stopping = threading.Event()

    # --- for other threads ---------------------------------------------------

    def take(self, lines: Sequence[DrivenLine]) -> None:
        """Drive these lines from now on."""
        with self._inbox_lock:
            self._inbox += lines
        self._client.interrupt()

    def free_places(self) -> int:
        """Return how many more lines may be taken."""
        return 0 if self._stopping.is_set() else max(0, MOST_LINES - len(self._lines) - len(self._inbox))

    def stop(self, seconds: float) -> bool:
        """Start nothing new, settle what is under way and let every line go; say whether that was done in time."""
        self._stopping.set()
        self._client.interrupt()
        self.join(seconds)
        return not self.is_alive()

    # --- the loop ------------------------------------------------------------

    def run(self) -> None:
        """Go round until stopped and empty."""
        try:
            while not self._stopping.is_set() or self._lines or self._inbox:
                self._round()
        except Exception:
            # A fault of ours: better a new process, which mends these lines, than one that drives half of them.
            log.exception("driver.failed")
            self._on_failure()
            raise
        finally:
            self._releaser.stop()
            self._client.close()
            forget_connection()

    def _round(self) -> None:
        for answer in self._client.wait(self._patience()):
            line = answer.token
            assert isinstance(line, DrivenLine)  # noqa: S101 - the only tokens there are
            assert line.started_at  # noqa: S101 - it was started
            self._advance(line, Sent(answer, line.started_at))
        self._take_in()
        if self._lingering and time.monotonic() >= self._linger_until:
            self._reading, self._lingering = self._reading + self._lingering, []
        while (self._steps or self._reading) and time.monotonic() >= self._database_asked_at:
            self._settle()
            self._read()

    def _patience(self) -> float:
        now = time.monotonic()
        if self._steps or self._reading:
            return max(0.0, self._database_asked_at - now)
        return max(0.0, self._linger_until - now) if self._lingering else IDLE_SECONDS

    def _take_in(self) -> None:
        with self._inbox_lock:
            new, self._inbox = self._inbox, []
        self._lines.update(new)
        if self._stopping.is_set():
            for line in self._lines:
                line.stopping = True
        for line in new:
            self._advance(line, None)

    def _advance(self, line: DrivenLine, reply: Reply) -> None:
        self._steps.append((line, line.advance(reply)))

    # --- settling ------------------------------------------------------------

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

    # --- reading -------------------------------------------------------------

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

    # --- letting go ----------------------------------------------------------

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
