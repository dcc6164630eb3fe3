"""Settle the steps of a round, and all that can go wrong with one; docs/architecture.md has a state diagram.

If the database is away, slots stay where they are and are settled again; a commit that was not heard may have marked
what they send. If the database refuses a value, steps are settled one by one, and the offender is given up. Steps of a
locked line are settled again in a moment. A fenced line is lost.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError

from broker_project.core.db import NotAnswered, forget_connection
from delivery.limits import DATABASE_RETRY_SECONDS, REFUSED_GROUP_SECONDS
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker.line import marks_of
from delivery.worker.queue_settle import put_back, settle_groups
from delivery.worker.settle import settle
from delivery.worker.slots import Slot, Slots, SlotState
from delivery.worker.steps import LineUpdate, Rest, Send, Settled, Settlement, Withheld

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
    """Settles the steps of slots; a settle is safe to repeat, and the epoch says whose the line is."""

    def __init__(self, slots: Slots, backoff: DatabaseBackoff) -> None:
        self._slots = slots
        self._backoff = backoff

    def settle(self) -> Iterator[Result]:
        """Settle all steps: one statement for QUEUE senders and one for all other lines, each on its own.

        A slot that is not among the results is LOCKED, or SETTLING still: the next round settles it.
        """
        slots = self._slots[SlotState.SETTLING]
        for slot in slots:
            match slot.step:
                case Send(ended=None, delivery=Outgoing(id=delivery_id, marked_as=int(sequence))):
                    yield slot, Settled(frozenset({slot.line.id}), frozenset(), frozenset(), {delivery_id: sequence})
        for of_groups in (True, False):
            if concerned := [
                slot for slot in slots if slot.line.is_sender is of_groups and slot.state is SlotState.SETTLING
            ]:
                yield from self._settle(concerned, of_groups=of_groups)

    def _settle(self, slots: list[Slot], *, of_groups: bool) -> Iterator[Result]:
        try:
            settled = settle_round(slots, of_groups=of_groups)
        except (OperationalError, InterfaceError) as failure:
            self._keep(slots, failure)
        except DatabaseError:
            for slot in slots:
                yield from self._settle_alone(slot, of_groups=of_groups)
        else:
            yield from self._results(slots, settled)

    def _settle_alone(self, slot: Slot, *, of_groups: bool) -> Iterator[Result]:
        """Settle one step after a data error, so that only the offender stops.

        A sender gives up the outcome that the database refuses, and only its group waits. Any other line is lost: its
        lease runs out, then it is recovered and tried again.
        """
        ended = slot.step.ended
        try:
            try:
                settled = settle_round([slot], of_groups=of_groups)
            except DatabaseError as failure:
                if isinstance(failure, OperationalError) or not (of_groups and ended):
                    raise
                log.exception("event_loop.group_put_off", line_id=slot.line.id, delivery_id=ended.delivery_id)
                put_back(slot.line.id, slot.line.claim.epoch, ended.delivery_id, pause=REFUSED_GROUP_SECONDS)
                slot.step = replace(slot.step, ended=None)
                settled = settle_round([slot], of_groups=True)
        except (OperationalError, InterfaceError) as failure:
            self._keep([slot], failure)
        except DatabaseError:
            log.exception("event_loop.line_dropped", line_id=slot.line.id)
            yield slot, None
        else:
            yield from self._results([slot], settled)

    def _keep(self, slots: list[Slot], failure: Exception) -> None:
        """Leave the slots where they are; nobody knows whether they have been settled."""
        for slot in slots:
            slot.may_be_marked |= isinstance(slot.step, Send)
        self._backoff.begin(failure)

    def _results(self, slots: list[Slot], settled: Settled) -> Iterator[Result]:
        for slot in slots:
            line, step = slot.line, slot.step
            is_started = isinstance(step, Send) and step.delivery.id in settled.started
            if line.id in settled.locked:
                slot.may_be_marked |= is_started
                self._slots.move(slot, SlotState.LOCKED)
            elif line.id not in settled.owned:
                log.warning("event_loop.fenced", line_id=line.id, epoch=line.claim.epoch)
                yield slot, None
            else:
                if (ended := step.ended) and ended.status is not DeliveryStatus.DELIVERED:
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


def settle_round(slots: Sequence[Slot], *, of_groups: bool) -> Settled:
    """Settle the steps in one statement; safe to repeat.

    `of_groups`: of QUEUE senders, which need a statement of their own. A line that is `locked` may be settled in part,
    and have deliveries `started`: it is settled again as a whole.
    """
    record: Callable[..., Settled] = settle_groups if of_groups else settle
    epochs = {slot.line.id: slot.line.claim.epoch for slot in slots}
    sends = [(slot, slot.step.delivery) for slot in slots if isinstance(slot.step, Send)]
    settlements = [slot.step.ended for slot in slots if isinstance(slot.step.ended, Settlement)]
    updates = [*_released(slots)]
    parts: dict[str, Any] = {
        "settlements": settlements,
        "marks": marks_of([(slot.line, delivery) for slot, delivery in sends]),
        "states": updates,
    }
    lines = {slot.line.id: slot.line for slot in slots}
    rare: dict[str, list[Any]] = {
        "withheld": [slot.step.ended for slot in slots if isinstance(slot.step.ended, Withheld)],
        "holds": [hold for line in lines.values() for hold in line.changed_holds.values()],
    }
    parts |= {name: values for name, values in rare.items() if values}
    if not any(parts.values()):
        return Settled(frozenset(epochs), frozenset(), frozenset(), {})
    settled = record(epochs, **parts)
    for line_id in settled.owned:
        lines[line_id].changed_holds.clear()
    missed = [one for one in settlements if one.line_id in settled.owned and one.delivery_id not in settled.ended]
    if missed:
        # Somebody asked to cancel after the statement had begun: its snapshot is older than the wish.
        of = {one.line_id for one in missed}
        skipped = record(epochs, settlements=missed, states=[one for one in updates if one.line_id in of]).locked
        settled = replace(settled, owned=settled.owned - skipped, locked=settled.locked | skipped)
    if of_groups:
        _put_back_unmarked(sends, settled)
    return settled


def _put_back_unmarked(sends: Sequence[tuple[Slot, Outgoing]], settled: Settled) -> None:
    """Put back what a sender may not send after all, though a commit that was not heard may have marked it."""
    for slot, delivery in sends:
        line = slot.line
        if slot.may_be_marked and line.id in settled.owned and delivery.id not in settled.started:
            put_back(line.id, line.claim.epoch, delivery.id)
            slot.may_be_marked = False


def _released(slots: Sequence[Slot]) -> Iterator[LineUpdate]:
    """Yield the updates of the lines of which every slot rests now."""
    resting = {slot for slot in slots if isinstance(slot.step, Rest)}
    for line in {slot.line.id: slot.line for slot in resting}.values():
        if all(slot in resting or slot.state is SlotState.PARKED for slot in line.slots):
            yield line.update()
