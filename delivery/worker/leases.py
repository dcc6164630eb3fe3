"""A line's stay in a worker: it comes with a lease, which is renewed with all others, and what follows its release.

A request ends before its line's lease does.
"""

import random
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import structlog

from broker_project.core import boot_clock
from delivery.dispatch import notify
from delivery.dispatch.claim import Claim, ended_pauses, renew
from delivery.dispatch.notify import Link
from delivery.limits import (
    DATABASE_RETRY_SECONDS,
    HOLDS_SECONDS,
    IDLE_SECONDS,
    LEASE_MARGIN_SECONDS,
    LEASE_SECONDS,
    MAX_EXTRA_SLOTS,
    MAX_IN_FLIGHT,
    MIN_IDLE_SECONDS,
    MIN_LINK_SECONDS,
    MIN_STATEMENT_SECONDS,
    RENEWAL_SECONDS,
    TURN_SECONDS,
)
from delivery.models import Lane
from delivery.worker.buffer import SlotShares
from delivery.worker.line import ActiveLine
from delivery.worker.queue import queue_line
from delivery.worker.slots import Rest, Send, Slot
from delivery.worker.topic import topic_line

log = structlog.get_logger(__name__)


def active_line(
    claimed: Claim,
    link: Link,
    renewed_at: float,
    *,
    queue_max_in_flight: int,
    extra_slots: int = MAX_EXTRA_SLOTS,
    **shared: Any,
) -> ActiveLine:
    """Return a claimed line with its slots: `queue_max_in_flight` of a QUEUE sender, otherwise what was claimed.

    `shared` is what it has in common with the process's other lines: rate limiter and isolated processes.
    What is held and not due takes up a slot, so a dead endpoint gets no more requests than there are slots. No line has
    more than `extra_slots` beyond its first: in a process with as many requests in flight as it may have, each has one.
    """
    is_sender = claimed.lane == Lane.QUEUE
    line = ActiveLine(claimed, link, renewed_at, **shared)
    resting = len(line.holds.resting(boot_clock.since_boot()))
    wanted = queue_max_in_flight if is_sender else max(1, claimed.concurrency - resting)
    slots = 1 + min(wanted - 1, extra_slots)
    link.lines_run += 1
    line.slot_shares = SlotShares(slots)
    line.slots = [Slot(line) for _ in range(slots)]
    for slot in line.slots:
        slot.generator = queue_line(slot, random.shuffle) if is_sender else topic_line(slot, random.random)
    return line


def idle_seconds(lines: int, extra_slots: int) -> float:
    """Return how many seconds an idle line is kept in a process with this many lines and extra slots.

    The fewer places or extra slots (those beyond the first of each line) are left, the shorter.
    """
    taken = max((lines + extra_slots) / MAX_IN_FLIGHT, extra_slots / MAX_EXTRA_SLOTS)
    return max(MIN_IDLE_SECONDS, IDLE_SECONDS * (1 - taken))


class Turns:
    """The turns of a worker's lines, in the order in which they end."""

    def __init__(self) -> None:
        self._lines: deque[ActiveLine] = deque()
        """Some may have been released."""
        self._next_link_at = 0.0
        """Time since boot from which a turn of another task may be ended."""
        self._last_link: Link | None = None

    def add(self, line: ActiveLine) -> None:
        """Note that a turn of the line begins."""
        self._lines.append(line)

    def end(self, now: float, is_here: Callable[[ActiveLine], bool]) -> None:
        """End those that have lasted long enough, no more than links may be sent, which lines of one task share."""
        while self._lines and now >= self._lines[0].taken_at + TURN_SECONDS:
            line = self._lines[0]
            if is_here(line) and line.link is not self._last_link:
                if now < self._next_link_at:
                    break
                self._last_link, self._next_link_at = line.link, now + MIN_LINK_SECONDS
            line.is_over = True
            self._lines.popleft()


class Leases:
    """The leases of a worker's lines, `lines` by their ids; belongs to the event loop's thread.

    If a lease was not renewed in time, the client ends its requests, and the line has lapsed. The database may be away,
    somebody may have locked the line, or this process may have been stopped.
    """

    def __init__(self, lines: Mapping[int, ActiveLine]) -> None:
        self._lines = lines
        self._lapsed: set[ActiveLine] = set()
        self._renewal_at = 0.0
        """Time since boot from which leases may be renewed again."""
        self._first_end = 0.0
        """Time since boot before which no lease ends."""
        self._look_at = 0.0
        """Time since boot from which what is held is looked at again."""

    def renew(self) -> list[ActiveLine]:
        """Renew those that are not new, in one statement, if it is time; return the lines that are no longer ours.

        What somebody has locked is tried again in a moment. More often it looks at what lines hold while they go on.

        Raises:
            django.db.Error: nobody knows what has been renewed.
        """
        before = boot_clock.since_boot()  # by the database's clock they last longer
        if before >= self._look_at:
            self._look_at = before + HOLDS_SECONDS
            self._look_at_holds(before)
        if before < self._renewal_at:
            return []
        old = [line for line in self._lines.values() if before >= line.renewed_at + RENEWAL_SECONDS]
        lines = [line for line in old if line not in self._lapsed]
        renewed = renew({line.id: line.claim.epoch for line in lines}) if lines else {}
        for line in lines:
            if renewed.get(line.id):
                line.renewed_at = before
        self._renewal_at = before + (RENEWAL_SECONDS if all(renewed.values()) else DATABASE_RETRY_SECONDS)
        self._first_end = 0.0
        return [line for line in lines if line.id not in renewed]

    def _look_at_holds(self, now: float) -> None:
        """Let what is held be due if somebody has ended its pause, or changed where it goes (contract 4.9, 5.11)."""
        holds = {
            hold.delivery_id: line.holds
            for line in self._lines.values()
            for hold in line.holds.resting(now)
            if hold.delivery_id not in line.holds.changed
        }
        for delivery_id in ended_pauses([*holds]) if holds else ():
            holds[delivery_id].end_pause(delivery_id)

    def lapse(self, line: ActiveLine) -> None:
        """Note that a request of the line was ended with its lease: the next worker recovers it.

        What its other slots have been answered is settled first, and nothing more is marked.
        """
        self._lapsed.add(line)
        line.stopping = True
        for slot in line.slots:
            if slot.is_unsettled and isinstance(slot.step, Send) and not slot.may_be_marked:
                slot.step = Rest()

    def lost(self) -> list[ActiveLine]:
        """Return the lapsed lines of which nothing is left to settle, and forget them."""
        lost = [
            line
            for line in self._lapsed
            if self._lines.get(line.id) is not line or not any(slot.is_unsettled and slot.ended for slot in line.slots)
        ]
        self._lapsed.difference_update(lost)
        return lost

    def database_deadline(self) -> float:
        """Return until when (time since boot) a round may wait for the database: until the first lease is about to end.

        Then a worker that waits for a hung database would not end its requests in time.
        """
        now = boot_clock.since_boot()
        if now >= self._first_end:
            ends = [line.lease_ends_at for line in self._lines.values() if line.lease_ends_at > now]
            self._first_end = min(ends, default=now + LEASE_SECONDS - LEASE_MARGIN_SECONDS)
        return max(self._first_end, now + MIN_STATEMENT_SECONDS)


@dataclass(slots=True)
class Released:
    """A line that this worker does not run any more, or could not claim."""

    line_id: int
    queue: str
    link: Link
    has_more: bool = False


def release_of(line: ActiveLine) -> Released:
    """Return how a line is released whose slots all rest."""
    held = [hold.delivery_id for hold in line.holds.resting(boot_clock.since_boot())]
    is_held = len(held) >= line.claim.concurrency
    if is_held:
        log.info("line.held", line_id=line.id, delivery_ids=held)
    may_have_more = line.buffer.has_more or line.has_hint or line.is_outdated or bool(line.slot_shares.avoided)
    has_more = may_have_more and not is_held and line.rest is None
    log.debug("line.released", line_id=line.id, epoch=line.claim.epoch, has_more=has_more)
    return Released(line.id, line.claim.queue, line.link, has_more)


class Releaser(threading.Thread):
    """Follows up on released lines in a thread of its own, so that a slow Redis delays no line.

    The settle has ended the lease first. Then publishers wake the line again, and only then its next turn is sent. A
    hint that comes too late lets this worker own and claim the line again: so no wake-up is lost.
    """

    def __init__(
        self, worker: str, take: Callable[[str, Sequence[int]], object], on_failure: Callable[[], object]
    ) -> None:
        super().__init__(name="releaser", daemon=True)
        self._worker = worker
        self._on_failure = on_failure
        self._take = take
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.start()

    def release(self, lines: Sequence[Released]) -> None:
        """Take over lines whose lease has been ended, or that are lost."""
        self._work.put(partial(self._follow_up, lines))

    def claim_again(self, queue: str, line_ids: Sequence[int]) -> None:
        """Let the worker claim lines that it has released, since a hint came too late for them."""
        self._work.put(partial(notify.own, queue, line_ids, self._worker))
        self._work.put(partial(self._take, queue, line_ids))

    def let_go(self, link: Link, lines: int = 1) -> None:
        """Note that so many lines fewer run for a task; after the last, report what the task has done."""
        link.lines_left -= lines
        if not link.lines_left and link.task_id:
            self._work.put(partial(notify.report_done, link))

    def stop(self) -> None:
        """Finish what was taken over, and end."""
        self._work.put(None)
        self.join()

    def run(self) -> None:
        """Follow up until stopped."""
        try:
            while act := self._work.get():
                act()
        except Exception:
            log.exception("releaser.failed")
            self._on_failure()
            raise

    def _follow_up(self, lines: Sequence[Released]) -> None:
        by_queue: dict[str, list[int]] = defaultdict(list)
        links: dict[tuple[str, Link], list[int]] = defaultdict(list)
        for line in lines:
            by_queue[line.queue].append(line.line_id)
            if line.has_more:
                links[line.queue, line.link].append(line.line_id)
        for queue, line_ids in by_queue.items():
            notify.disown(queue, line_ids, self._worker)
        for (queue, link), line_ids in links.items():
            notify.send_link(queue, line_ids, link)
