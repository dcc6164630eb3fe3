"""Read pages: which deliveries a line may send next, oldest first (contract 4.2, 4.6, 5.3).

Of a line with one slot the first is marked as IN_FLIGHT at once, and comes with all that its request needs.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, LiteralString, NamedTuple

import structlog
from django.db import Error, InterfaceError, OperationalError

from broker_project.core import boot_clock
from broker_project.core.db import NotAnswered, Rows, forget_connection, rows
from delivery.callbacks.address import CallbackTerms
from delivery.limits import DATABASE_RETRY_SECONDS, MAX_CRASHES, MAX_MARKED_BYTES
from delivery.webhook.content import Content, content_with, contents_of
from delivery.webhook.destination import Destination, destinations_of, original_addresses
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import (
    DEFERRED,
    FRESH,
    HEAD,
    BodyBudget,
    Buffer,
    Page,
    PageRequest,
    Row,
    charged,
    page_of,
)
from delivery.worker.line import ActiveLine
from delivery.worker.order import AFTER
from delivery.worker.page_sql import UNMARK, statement_of_pages
from delivery.worker.queue import read_groups
from delivery.worker.slots import Read, Slot, Slots, SlotState

log = structlog.get_logger(__name__)

HOLD_WITHOUT_MESSAGE: Final = """
UPDATE delivery_open
   SET status = 'HELD', waits_for = 'RELEASE', due_at = NULL,
       reason = 'its message is missing or damaged in the database'
 WHERE closed_on = '9999-12-31' AND id = ANY (ARRAY(
   SELECT d.id FROM unnest(%s::bigint[]) AS i (id)
    CROSS JOIN LATERAL (
      SELECT id FROM delivery_open
       WHERE id = i.id AND closed_on = '9999-12-31' AND status = 'PENDING' LIMIT 1 FOR UPDATE SKIP LOCKED) d))
RETURNING id, message_id
"""
"""Retention keeps what a delivery needs, so somebody has deleted it, or a disk has failed: waiting would stop the line.
Others have been cancelled since they were read."""

ROW_WIDTH: Final = len(Row._fields)


class Marked(NamedTuple):
    """A delivery that was marked as IN_FLIGHT with its page."""

    size: int
    sequence: int
    content: Content


def _next_key(line: PageRequest, page: "Page[Row]", found: Sequence[Row]) -> str:
    """Return the ordering key from which on the next page is read; empty: from the first one on.

    A walk from key to key ends early when it has met many keys of which at least half have something to send. The page
    can also be too small for all keys that the walk has met. In both cases the next page begins behind the last key.
    """
    assert line.walk  # noqa: S101 - only asked of lines that go by keys
    keys = {row.ordering_key for row in page.taken if row.part == FRESH}
    after = max(keys) + AFTER if keys else line.walk.start
    waiting = {row.ordering_key for row in found if row.part == FRESH and row.id not in line.busy}
    return after if 2 * len(keys) >= line.walk.keys or max(waiting, default="") >= after else ""


class PageReading:
    """A statement that reads pages, and what becomes of its rows; to be closed in any case.

    `settled` are deliveries that the same transaction settles before it: of a line in which one of them stays in flight
    nothing is marked. None: no other statement is in its transaction.
    """

    def __init__(
        self,
        wanted: Sequence[PageRequest],
        budget: BodyBudget,
        settled: Sequence[int] | None = None,
        *,
        marks: bool = True,
    ) -> None:
        self.wanted = wanted
        self._budget = budget
        self._marked: Mapping[int, Marked] = {}
        marking = [line for line in wanted if marks and line.mark_as is not None]
        self._reserved = len(marking) * MAX_MARKED_BYTES
        if not budget.take(self._reserved):
            marking, self._reserved = [], 0
        self.statement = statement_of_pages(wanted, marking, settled)

    def close(self) -> None:
        """Give back what was reserved of the budget for bodies that could have been marked."""
        self._budget.give_back(self._reserved - sum(first.size for first in self._marked.values()))

    def buffers(self, found: Rows) -> dict[int, Buffer[Outgoing]]:
        """Return a buffer for every line: at most its capacity and bytes (but always one), and what the budget has.

        Takes each buffer's bytes from the budget; when a delivery is dropped, its bytes are given back. A buffer is
        `starved` if there is work but the process holds too many bodies already: then nothing is marked either. A line
        is missing if the configuration of what was marked has changed since: that has to be undone.
        """
        by_line: dict[int, list[Row]] = defaultdict(list)
        marked: dict[int, Marked] = {}
        for columns in found:
            row = Row._make(columns[:ROW_WIDTH])
            by_line[row.line_id].append(row)
            if self._reserved and columns[ROW_WIDTH] is not None:
                _, sequence, *content = columns[ROW_WIDTH:]
                marked[row.id] = Marked(row.size, sequence, content_with(content))
        self._marked = marked
        pages = {
            line.line_id: page_of(by_line.get(line.line_id, []), line, self._budget, paid_for=marked)
            for line in self.wanted
        }
        buffers: dict[int, Buffer[Outgoing]] = {}
        with charged(self._budget, pages, buffers) as taken:
            contents = contents_of({row.message_id for row in taken if row.id not in marked})
            _hold_without_message([row.id for row in taken if row.id not in marked and row.message_id not in contents])
            destinations = destinations_of({row.subscription_id: row.version for row in taken if row.subscription_id})
            originals = original_addresses({row.line_id for row in taken if row.subscription_id is None})
            changed = {
                row.line_id
                for row in taken
                if row.id in marked
                and not ((to := destinations.get(row.subscription_id or 0)) and to.config_version == row.version)
            }
            for line_id, page in pages.items():
                if line_id not in changed:
                    buffers[line_id] = _buffer_of(page, marked, contents, destinations, originals)
        for line in self.wanted:
            if line.line_id in buffers:
                _note_ends(line, pages[line.line_id], by_line.get(line.line_id, ()), buffers[line.line_id])
        return buffers


def _hold_without_message(delivery_ids: Sequence[int]) -> None:
    """Hold these deliveries, whose messages could not be read, unless they have been cancelled since."""
    if delivery_ids:
        for delivery_id, message_id in rows(HOLD_WITHOUT_MESSAGE, [[*delivery_ids]]):
            log.error("delivery.message_missing", delivery_id=delivery_id, message_id=message_id)


def _note_ends(line: PageRequest, page: Page[Row], found: Sequence[Row], buffer: Buffer[Outgoing]) -> None:
    """Note where the line's next page begins, and which of its held deliveries may no longer be sent."""
    if line.walk:
        buffer.next_key = _next_key(line, page, found)
    if line.heads:
        heads = {row.id for row in found if row.part == HEAD}
        buffer.gone = [one for one in line.heads if one not in heads]


def _buffer_of(
    page: Page[Row],
    marked: Mapping[int, Marked],
    contents: Mapping[int, Content],
    destinations: Mapping[int, Destination],
    originals: Mapping[int, Destination],
) -> Buffer[Outgoing]:
    parts: dict[int, list[Outgoing]] = {HEAD: [], FRESH: [], DEFERRED: []}
    for row in page.taken:
        first = marked.get(row.id)
        content = first.content if first else contents.get(row.message_id)
        destination = destinations.get(row.subscription_id) if row.subscription_id else originals.get(row.line_id)
        # Both are there unless somebody cancelled the delivery and deleted what it needs since its row was read.
        if content and destination:
            delivery = Outgoing(
                id=row.id,
                content=content,
                destination=destination,
                attempts=row.attempts,
                sequence=row.sequence,
                uncertain=row.uncertain,
                size=row.size,
                is_deferred=row.part == DEFERRED,
                times_deferred=row.times_deferred,
                marked_as=first.sequence if first else None,
                ordering_key=row.ordering_key,
                needs_isolation=row.crash_count >= MAX_CRASHES,
            )
            parts[HEAD if first else row.part].append(delivery)
    more = {"more": page.more, "is_starved": page.is_starved}
    return Buffer(heads=parts[HEAD], fresh=parts[FRESH], deferred=parts[DEFERRED], **more)


class DatabaseBackoff:
    """The time until which the database is not asked, because it has failed."""

    def __init__(self) -> None:
        self.until = 0.0
        """Time since boot."""
        self.is_in_doubt = False
        """Whether it may carry out what it was asked at any later time, since it did not answer."""

    @property
    def is_over(self) -> bool:
        """Whether the database may be asked."""
        return boot_clock.since_boot() >= self.until

    def begin(self, failure: Exception) -> None:
        """Note that the database has failed; the next statement gets a new connection."""
        log.warning("event_loop.database_failed", reason=failure)
        self.until = boot_clock.since_boot() + DATABASE_RETRY_SECONDS
        self.is_in_doubt |= isinstance(failure, NotAnswered)
        forget_connection()


class Pages:
    """The pages that the lines of a process wait for: asked for with the settle of a round, received after it."""

    def __init__(self, slots: Slots, backoff: DatabaseBackoff, budget: BodyBudget, terms: CallbackTerms) -> None:
        self._slots = slots
        self._backoff = backoff
        self._budget = budget
        self._read_groups = partial(read_groups, terms=terms)
        self.wanted: Mapping[ActiveLine, PageRequest] = {}
        """What the statement of this round reads; QUEUE groups have one of their own."""
        self._reading: PageReading | None = None
        self.found: Rows = []
        """What it has found, until it is received."""
        self._marks = True
        """Whether a statement may mark, and so bring messages along; not after one that read a damaged message."""

    def requests(self, settling: Sequence[Slot]) -> dict[ActiveLine, PageRequest]:
        """Return what is read: of the lines of which a slot waits for a page, or will once its step is settled."""
        lines = {slot.line: None for slot in self._slots[SlotState.READING]}
        lines |= {slot.line: None for slot in settling if isinstance(slot.step, Read) and slot.line.reads(slot.step)}
        wanted = [line for line in lines if not line.is_sender and not line.unheard]
        for line in wanted:
            line.return_buffer(self._budget)
        return {line: line.page_request() for line in wanted}

    def statement(self, settled: Sequence[int] | None, *, marks: bool) -> tuple[LiteralString, Mapping[str, Any]]:
        """Return the statement that reads what is wanted, for `PageReading`; then either note `found`, or `drop` it."""
        self._reading = PageReading([*self.wanted.values()], self._budget, settled, marks=marks and self._marks)
        return self._reading.statement

    def drop(self) -> None:
        """Forget the statement: it has failed, or was received."""
        if self._reading:
            self._reading.close()
        self._reading = None

    def fail(self, failure: Error) -> None:
        """Forget the statement, which has failed: if the database is there, perhaps for a damaged message."""
        self._marks = isinstance(failure, OperationalError | InterfaceError)
        self.drop()

    def note_unheard(self) -> None:
        """Note that nobody knows what the statement has marked."""
        for line, request in self.wanted.items():
            line.unheard = request if request.mark_as else line.unheard
        self.drop()

    def received(self) -> Iterator[Slot]:
        """Give lines their pages; yield the slots to resume, which take of these: each before the next is asked for."""
        if self._reading:
            try:
                buffers = self._reading.buffers(self.found)
            except Error as failure:
                self.note_unheard()
                self._backoff.begin(failure)
            else:
                self._marks = True
                self.drop()
                yield from self._give({line: buffers.get(line.id) for line in self.wanted})
        senders = [line for line in {slot.line: None for slot in self._slots[SlotState.READING]} if line.is_sender]
        if senders and self._backoff.is_over:
            yield from self._received_groups(senders)

    def unmark(self) -> list[ActiveLine]:
        """Undo what pages that were not heard of may have marked; return the lines where that is not certain."""
        unheard = {slot.line: slot.line.unheard for slot in self._slots[SlotState.READING] if slot.line.unheard}
        if not unheard or not self._backoff.is_over:
            return []
        last = [(one.line_id, one.epoch, one.mark_as - 1) for one in unheard.values() if one.mark_as]
        try:
            certain = {line_id for (line_id,) in rows(UNMARK, [[*column] for column in zip(*last, strict=True)])}
        except Error as failure:
            self._backoff.begin(failure)
            return []
        for line in unheard:
            line.unheard = None if line.id in certain else line.unheard
        return [line for line in unheard if line.id not in certain]

    def _give(self, buffers: Mapping[ActiveLine, Buffer[Any] | None]) -> Iterator[Slot]:
        """Let lines have their pages; yield the slots that take of them, then idle ones while something is left."""
        waiting = {slot.line for slot in self._slots[SlotState.READING]}
        for line, buffer in buffers.items():
            if buffer is not None and line in waiting and not line.misread:
                line.receive(buffer)
                continue
            if buffer is not None:
                self._budget.give_back(buffer.bytes)
            request = self.wanted.get(line)
            line.unheard = request if request and request.mark_as else line.unheard
        for slot in self._slots[SlotState.READING]:
            if slot.line in buffers and not slot.line.unheard and not slot.line.misread:
                yield slot
        for slot in self._slots[SlotState.IDLE]:
            if slot.line in buffers and slot.line.buffer.has_next:
                yield slot

    def _received_groups(self, senders: Sequence[ActiveLine]) -> Iterator[Slot]:
        for line in senders:
            line.return_buffer(self._budget)
        try:
            groups = self._read_groups([line.page_request() for line in senders], self._budget)
        except Error as failure:
            self._backoff.begin(failure)
        else:
            yield from self._give({line: groups.get(line.id) for line in senders})
