"""One round trip to the database: settle what has ended, mark what is next, read pages; and all that can go wrong.

If the database is away, slots stay where they are and are settled again; a commit that was not heard may have marked
what they send. If the database refuses a value, steps are settled one by one, and the offender is given up. Steps of a
line that somebody has locked, or a delivery of it, are settled again in a moment. A fenced line is lost.
docs/architecture.md has a table of what can go wrong.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from django.db import DatabaseError, Error, InterfaceError, OperationalError

from broker_project.core.db import NotAnswered, RowLocked, Rows, forget_connection, rows_of_each
from delivery.callbacks.address import CallbackTerms
from delivery.limits import DATABASE_RETRY_SECONDS, REFUSED_GROUP_SECONDS
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.line import ActiveLine, marks_of
from delivery.worker.pages import PageReading, PageRequest, unmark
from delivery.worker.queue import read_groups
from delivery.worker.queue_settle import put_back, settle_groups, settling_groups
from delivery.worker.settle import Statement, settle, settled_by, settling
from delivery.worker.slots import Slot, Slots, SlotState
from delivery.worker.steps import LineUpdate, Read, Rest, Send, Settled, Settlement, Withheld

log = structlog.get_logger(__name__)

Result = tuple[Slot, Settled | None]
"""A slot whose step has been settled, and what that did; None: its line is lost."""


class DatabaseBackoff:
    """The time until which the database is not asked, because it has failed."""

    def __init__(self) -> None:
        self.until = 0.0
        """Monotonic time."""
        self.is_in_doubt = False
        """Whether it may carry out what it was asked at any later time, since it did not answer."""

    @property
    def is_over(self) -> bool:
        """Whether the database may be asked."""
        return time.monotonic() >= self.until

    def begin(self, failure: Exception) -> None:
        """Note that the database has failed; the next statement gets a new connection."""
        log.warning("event_loop.database_failed", reason=failure)
        self.until = time.monotonic() + DATABASE_RETRY_SECONDS
        self.is_in_doubt |= isinstance(failure, NotAnswered)
        forget_connection()


class Settling:
    """The steps of slots that are settled together, either of QUEUE senders or of other lines; safe to repeat."""

    def __init__(self, slots: Sequence[Slot], *, of_groups: bool) -> None:
        self.slots = slots
        self.of_groups = of_groups
        self._lines = {slot.line.id: slot.line for slot in slots}
        self.epochs = {line.id: line.claim.epoch for line in self._lines.values()}
        self._sends = [(slot, slot.step.delivery) for slot in slots if isinstance(slot.step, Send)]
        self.settlements = [slot.ended for slot in slots if isinstance(slot.ended, Settlement)]
        self._updates = [*_released(slots)]
        parts: dict[str, Sequence[Any]] = {
            "settlements": self.settlements,
            "marks": marks_of([(slot.line, delivery) for slot, delivery in self._sends]),
            "states": self._updates,
            "withheld": [slot.ended for slot in slots if isinstance(slot.ended, Withheld)],
            "holds": [hold for line in self._lines.values() for hold in line.changed_holds.values()],
        }
        self.parts = {name: values for name, values in parts.items() if values}

    def statement(self, *, spares: bool = False) -> Statement | None:
        """Return the statement that settles them, None if there is nothing to record.

        A line of which somebody has locked a delivery is waited for, for a moment, or left out: it `spares` them.
        """
        make = settling_groups if self.of_groups else settling
        return make(self.epochs, **self.parts, spares=spares) if self.parts else None

    def settled(self, found: Any) -> Settled:
        """Return what the statement did, whose rows were `found`; None: there was none."""
        if found is None:
            return Settled(frozenset(self.epochs), frozenset(), frozenset(), {})
        settled = settled_by(self.epochs, found)
        for line_id in settled.owned:
            self._lines[line_id].changed_holds.clear()
        missed = [
            one for one in self.settlements if one.line_id in settled.owned and one.delivery_id not in settled.ended
        ]
        if missed:
            # Somebody asked to cancel after the statement had begun: its snapshot is older than the wish.
            record = settle_groups if self.of_groups else settle
            of = {one.line_id for one in missed}
            states = [one for one in self._updates if one.line_id in of]
            skipped = record(self.epochs, settlements=missed, states=states, spares=True).locked
            settled = replace(settled, owned=settled.owned - skipped, locked=settled.locked | skipped)
        if self.of_groups:
            self._put_back_unmarked(settled)
        return settled

    def _put_back_unmarked(self, settled: Settled) -> None:
        """Put back what a sender may not send after all, though a commit that was not heard may have marked it."""
        for slot, delivery in self._sends:
            line = slot.line
            if slot.may_be_marked and line.id in settled.owned and delivery.id not in settled.started:
                put_back(line.id, line.claim.epoch, delivery.id)
                slot.may_be_marked = False


class RoundTrip:
    """Settles and reads for the slots of a process, with one commit for all of them."""

    def __init__(self, slots: Slots, backoff: DatabaseBackoff, budget: BodyBudget, terms: CallbackTerms) -> None:
        self._slots = slots
        self._backoff = backoff
        self._budget = budget
        self._read_groups = partial(read_groups, terms=terms)
        self._spares = False
        """Whether a row was locked for longer than a statement waits: lines with such a row are left out."""
        self._is_apart = False
        """Whether the last round trip failed: then each statement goes alone, in case one of them fails always."""
        self._pages: tuple[PageReading, Rows] | None = None
        """Pages of the last round trip that have not been received yet."""
        self._wanted: Mapping[ActiveLine, PageRequest] = {}
        """The lines of these pages."""

    def settle(self) -> Iterator[Result]:
        """Settle all steps: one statement for QUEUE senders, one for all other lines, and with them one that reads.

        A slot that is not among the results is LOCKED, or SETTLING still: the next round settles it. To be exhausted,
        and followed by `received` and `unmark`.
        """
        yield from self._marked_with_pages()
        slots = self._slots[SlotState.SETTLING]
        kinds = [
            Settling(concerned, of_groups=of_groups)
            for of_groups in (True, False)
            if (concerned := [slot for slot in slots if slot.line.is_sender is of_groups])
        ]
        wanted = self._requests(slots)
        trips = [*(([kind], {}) for kind in kinds), ([], wanted)] if self._is_apart else [(kinds, wanted)]
        self._is_apart = False
        for together, self._wanted in trips:
            yield from self._settle(together)
        self._spares = self._slots.any_in(SlotState.LOCKED)

    def received(self) -> Iterator[Slot]:
        """Give lines their pages; yield the slots to resume, which take of these: each before the next is asked for."""
        if self._pages:
            reading, found = self._pages
            self._pages = None
            try:
                with reading:
                    buffers = reading.buffers(found)
            except Error as failure:
                self._keep([], failure)
            else:
                yield from self._give({line: buffers.get(line.id) for line in self._wanted})
        senders = [line for line in {slot.line: None for slot in self._slots[SlotState.READING]} if line.is_sender]
        if senders and self._backoff.is_over:
            yield from self._received_groups(senders)

    def unmark(self) -> list[ActiveLine]:
        """Undo what pages that were not heard of may have marked; return the lines where that is not certain."""
        unheard = {slot.line: slot.line.unheard for slot in self._slots[SlotState.READING] if slot.line.unheard}
        if not unheard or not self._backoff.is_over:
            return []
        try:
            certain = unmark([*unheard.values()])
        except Error as failure:
            self._backoff.begin(failure)
            return []
        for line in unheard:
            line.unheard = None if line.id in certain else line.unheard
        return [line for line in unheard if line.id not in certain]

    def _settle(self, kinds: Sequence[Settling]) -> Iterator[Result]:
        try:
            settled = self.ask(kinds, spares=self._spares)
        except (OperationalError, InterfaceError) as failure:
            self._is_apart = True
            self._keep([slot for kind in kinds for slot in kind.slots], failure)
        except DatabaseError as failure:
            yield from self._settle_each(kinds, failure)
        else:
            for kind, one in zip(kinds, settled, strict=True):
                yield from _results(self._slots, kind.slots, one)

    def _marked_with_pages(self) -> Iterator[Result]:
        """Yield the slots that send what was marked with its page: nothing is left to settle."""
        for slot in self._slots[SlotState.SETTLING]:
            match slot.step:
                case Send(delivery=Outgoing(id=delivery_id, marked_as=int(sequence))) if not slot.ended:
                    yield slot, Settled(frozenset({slot.line.id}), frozenset(), frozenset(), {delivery_id: sequence})

    def _requests(self, settling: Sequence[Slot]) -> dict[ActiveLine, PageRequest]:
        """Return what is read: of the lines of which a slot waits for a page, or will once its step is settled."""
        lines = {slot.line: None for slot in self._slots[SlotState.READING]}
        lines |= {slot.line: None for slot in settling if isinstance(slot.step, Read) and slot.line.reads(slot.step)}
        wanted = [line for line in lines if not line.is_sender and not line.unheard]
        for line in wanted:
            line.return_buffer(self._budget)
        return {line: line.page_request() for line in wanted}

    def ask(self, kinds: Sequence[Settling], *, spares: bool = False) -> list[Settled]:
        """Make the round trip; return what became of each kind.

        If somebody has locked a row, it is made once more, and `spares` the lines with such a row.
        """
        settles = [kind.statement(spares=spares) for kind in kinds]
        statements = [one for one in settles if one]
        reading: PageReading | None = None
        try:
            with ExitStack() as stack:
                if self._wanted:
                    settled = [one.delivery_id for kind in kinds for one in kind.settlements] if statements else None
                    reading = PageReading([*self._wanted.values()], self._budget, settled, marks=not spares)
                    stack.enter_context(reading)
                    statements.append(reading.statement)
                found = rows_of_each(statements) if statements else []
                if reading:
                    self._pages = reading, found.pop()
                    stack.pop_all()  # closed when it is received
        except RowLocked as failure:
            log.info("event_loop.row_locked", reason=failure)
            if spares:
                raise
            return self.ask(kinds, spares=True)
        answers = iter(found)
        return [kind.settled(next(answers) if one else None) for kind, one in zip(kinds, settles, strict=True)]

    def _settle_each(self, kinds: Sequence[Settling], failure: DatabaseError) -> Iterator[Result]:
        """Settle the steps one by one after a data error, and read no pages yet."""
        if not kinds:
            self._keep([], failure)
        self._wanted = {}
        for kind in kinds:
            for slot in kind.slots:
                yield from self._settle_alone(slot, of_groups=kind.of_groups)

    def _settle_alone(self, slot: Slot, *, of_groups: bool) -> Iterator[Result]:
        """Settle one step after a data error, so that only the offender stops.

        A sender gives up the outcome that the database refuses, and only its group waits. Any other line is lost: its
        lease runs out, then it is recovered and tried again.
        """
        ended = slot.ended
        try:
            try:
                (settled,) = self.ask([Settling([slot], of_groups=of_groups)])
            except DatabaseError as failure:
                if isinstance(failure, OperationalError) or not (of_groups and ended):
                    raise
                log.exception("event_loop.group_put_off", line_id=slot.line.id, delivery_id=ended.delivery_id)
                put_back(slot.line.id, slot.line.claim.epoch, ended.delivery_id, pause=REFUSED_GROUP_SECONDS)
                slot.ended = None
                (settled,) = self.ask([Settling([slot], of_groups=True)])
        except (OperationalError, InterfaceError) as failure:
            self._keep([slot], failure)
        except DatabaseError:
            log.exception("event_loop.line_dropped", line_id=slot.line.id)
            yield slot, None
        else:
            yield from _results(self._slots, [slot], settled)

    def _keep(self, slots: Sequence[Slot], failure: Exception) -> None:
        """Leave all where it is; nobody knows whether the slots have been settled, and what pages have marked."""
        for slot in slots:
            slot.may_be_marked |= isinstance(slot.step, Send)
        for line, request in self._wanted.items():
            line.unheard = request if request.mark_as else line.unheard
        self._drop_pages()
        self._backoff.begin(failure)

    def _drop_pages(self) -> None:
        if self._pages:
            with self._pages[0]:
                self._pages = None

    def _give(self, buffers: Mapping[ActiveLine, Buffer[Any] | None]) -> Iterator[Slot]:
        """Let lines have their pages; yield the slots that take of them, in a keyed line idle ones too.

        It may have free keys for these.
        """
        waiting = {slot.line for slot in self._slots[SlotState.READING]}
        for line, buffer in buffers.items():
            if buffer is not None and line in waiting and not line.misread:
                line.receive(buffer)
                continue
            if buffer is not None:
                self._budget.give_back(buffer.bytes)
            request = self._wanted.get(line)
            line.unheard = request if request and request.mark_as else line.unheard
        for slot in self._slots[SlotState.READING]:
            if slot.line in buffers and not slot.line.unheard and not slot.line.misread:
                yield slot
        for slot in self._slots[SlotState.IDLE]:
            if slot.line.is_keyed and slot.line in buffers and slot.line.buffer.has_next:
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


def _results(by_state: Slots, slots: Sequence[Slot], settled: Settled) -> Iterator[Result]:
    for slot in slots:
        line, step = slot.line, slot.step
        is_started = isinstance(step, Send) and step.delivery.id in settled.started
        if line.id in settled.locked:
            slot.may_be_marked |= is_started
            by_state.move(slot, SlotState.LOCKED)
        elif line.id not in settled.owned:
            log.warning("event_loop.fenced", line_id=line.id, epoch=line.claim.epoch)
            yield slot, None
        else:
            if (ended := slot.ended) and ended.status is not DeliveryStatus.DELIVERED:
                log.info(
                    "delivery.not_taken",
                    delivery_id=ended.delivery_id,
                    line_id=ended.line_id,
                    status=str(ended.status),
                    reason=ended.log_reason,
                    due_in_seconds=ended.pause,
                )
            if isinstance(step, Send) and slot.may_be_marked and not is_started:
                log.warning("event_loop.mark_unknown", line_id=line.id, delivery_id=step.delivery.id)
                yield slot, None  # its lease runs out, then it is recovered
            else:
                yield slot, settled


def _released(slots: Sequence[Slot]) -> Iterator[LineUpdate]:
    """Yield the updates of the lines of which every slot rests now."""
    resting = {slot for slot in slots if isinstance(slot.step, Rest)}
    for line in {slot.line.id: slot.line for slot in resting}.values():
        if all(slot in resting or slot.state is SlotState.PARKED for slot in line.slots):
            yield line.update()
