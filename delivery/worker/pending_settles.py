"""The failure protocol of settling: a step stays here until its result is known, or its line is lost.

docs/architecture.md has a state diagram. If the database is away, all steps are kept and settled again; a commit that
was not heard may have marked their `Send`s. If the database refuses a value, steps are settled one by one, and the
offender is given up. Steps of a locked line are settled again. A fenced line is lost.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError

from broker_project.core.db import forget_connection
from delivery.limits import DATABASE_RETRY_SECONDS, REFUSED_GROUP_SECONDS
from delivery.statuses import DeliveryStatus
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.queue_settle import put_back, settle_groups
from delivery.worker.settle import settle
from delivery.worker.steps import LineUpdate, Rest, Send, Settled, Settlement, Step, Withheld

log = structlog.get_logger(__name__)

Taken = tuple[Slot, Step]
Result = tuple[Slot, Step, Settled | None]
"""A step and what its settle did; None: its line is lost."""


class DatabaseBackoff:
    """The time until which the database is not asked, because it has failed."""

    def __init__(self) -> None:
        self.until = 0.0
        """Monotonic time."""

    @property
    def is_over(self) -> bool:
        """Whether the database may be asked."""
        return time.monotonic() >= self.until

    def begin(self, failure: Exception) -> None:
        """Note that the database has failed; the next statement gets a new connection."""
        log.warning("event_loop.database_failed", reason=failure)
        self.until = time.monotonic() + DATABASE_RETRY_SECONDS
        forget_connection()


class PendingSettles:
    """Steps in the order in which they came; a settle is safe to repeat, and the epoch says whose the line is."""

    def __init__(self, backoff: DatabaseBackoff) -> None:
        self._backoff = backoff
        self._steps: list[Taken] = []
        self.locked: list[Taken] = []
        """Of lines that somebody else has locked for a moment."""

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, slot: Slot, step: Step) -> None:
        """Take on what a slot wants next."""
        self._steps.append((slot, step))

    def take_locked(self) -> None:
        """Settle those of locked lines again."""
        self._steps, self.locked = self._steps + self.locked, []

    def keep(self, steps: Sequence[Taken]) -> None:
        """Settle these again later; nobody knows whether they have been."""
        for slot, step in steps:
            slot.may_be_marked = isinstance(step, Send)
        self._steps = [*steps, *self._steps]

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is no longer ours."""
        self._steps = [taken for taken in self._steps if taken[0].line is not line]
        self.locked = [taken for taken in self.locked if taken[0].line is not line]

    def settle(self) -> Iterator[Result]:
        """Settle all steps: one statement for QUEUE senders and one for all other lines, each on its own."""
        steps, self._steps = self._steps, []
        of_senders = [taken for taken in steps if taken[0].line.is_sender]
        if of_senders:
            steps = [taken for taken in steps if not taken[0].line.is_sender]
            yield from self._settle(of_senders, of_groups=True)
        if steps:
            yield from self._settle(steps, of_groups=False)

    def _settle(self, steps: list[Taken], *, of_groups: bool) -> Iterator[Result]:
        try:
            settled = settle_round(steps, of_groups=of_groups)
        except (OperationalError, InterfaceError) as failure:
            self.keep(steps)
            self._backoff.begin(failure)
        except DatabaseError:
            for taken in steps:
                yield from self._settle_alone(taken, of_groups=of_groups)
        else:
            yield from self._results(steps, settled)

    def _settle_alone(self, taken: Taken, *, of_groups: bool) -> Iterator[Result]:
        """Settle one step after a data error, so that only the offender stops.

        A sender gives up the outcome that the database refuses, and only its group waits. Any other line is lost: its
        lease runs out, then it is recovered and tried again.
        """
        slot, step = taken
        try:
            try:
                settled = settle_round([taken], of_groups=of_groups)
            except DatabaseError as failure:
                if isinstance(failure, OperationalError) or not (of_groups and step.ended):
                    raise
                log.exception("event_loop.group_put_off", line_id=slot.line.id, delivery_id=step.ended.delivery_id)
                put_back(slot.line.id, slot.line.claim.epoch, step.ended.delivery_id, pause=REFUSED_GROUP_SECONDS)
                settled = settle_round([(slot, replace(step, ended=None))], of_groups=True)
        except (OperationalError, InterfaceError) as failure:
            self.keep([taken])
            self._backoff.begin(failure)
        except DatabaseError:
            log.exception("event_loop.line_dropped", line_id=slot.line.id)
            yield slot, step, None
        else:
            yield from self._results([taken], settled)

    def _results(self, steps: list[Taken], settled: Settled) -> Iterator[Result]:
        for slot, step in steps:
            line = slot.line
            is_started = isinstance(step, Send) and step.delivery.id in settled.started
            if line.id in settled.locked:
                slot.may_be_marked |= is_started
                self.locked.append((slot, step))
            elif line.id not in settled.owned:
                log.warning("event_loop.fenced", line_id=line.id, epoch=line.claim.epoch)
                yield slot, step, None
            else:
                if step.ended and step.ended.status is not DeliveryStatus.DELIVERED:
                    log.info("delivery.not_taken", **step.ended.log_fields())
                if isinstance(step, Send) and slot.may_be_marked and not is_started:
                    log.warning("event_loop.mark_unknown", line_id=line.id, delivery_id=step.delivery.id)
                    yield slot, step, None  # its lease runs out, then it is recovered
                else:
                    yield slot, step, settled


def settle_round(steps: Sequence[Taken], *, of_groups: bool) -> Settled:
    """Settle the steps in one statement, and note on the lines that their leases were renewed; safe to repeat.

    `of_groups`: of QUEUE senders, which need a statement of their own. A line that is `locked` may be settled in part,
    and have deliveries `started`: it is settled again as a whole.
    """
    record: Callable[..., Settled] = settle_groups if of_groups else settle
    epochs = {slot.line.id: slot.line.claim.epoch for slot, _ in steps}
    sends = [(slot, step) for slot, step in steps if isinstance(step, Send)]
    before = time.monotonic()
    sending = {slot.line.id: slot.line for slot, _ in sends}
    renewed = [line for line in sending.values() if not line.fits_the_lease(before)]
    settlements = [step.ended for _, step in steps if isinstance(step.ended, Settlement)]
    updates = [line.update(let_go=False) for line in renewed] + [*_released(steps)]
    parts: dict[str, Any] = {
        "settlements": settlements,
        "marks": [slot.line.mark(step.delivery) for slot, step in sends],
        "states": updates,
    }
    if withheld := [step.ended for _, step in steps if isinstance(step.ended, Withheld)]:
        parts["withheld"] = withheld
    if not any(parts.values()):
        return Settled(frozenset(epochs), frozenset(), frozenset(), {})
    settled = record(epochs, **parts)
    for line in renewed:
        if line.id in settled.owned:
            line.renewed_at = before
    missed = [one for one in settlements if one.line_id in settled.owned and one.delivery_id not in settled.ended]
    if missed:
        # Somebody asked to cancel after the statement had begun: its snapshot is older than the wish.
        lines = {one.line_id for one in missed}
        skipped = record(epochs, settlements=missed, states=[one for one in updates if one.line_id in lines]).locked
        settled = replace(settled, owned=settled.owned - skipped, locked=settled.locked | skipped)
    if of_groups:
        _put_back_unmarked(sends, settled)
    return settled


def _put_back_unmarked(sends: Sequence[tuple[Slot, Send]], settled: Settled) -> None:
    """Put back what a sender may not send after all, though a commit that was not heard may have marked it."""
    for slot, step in sends:
        line = slot.line
        if slot.may_be_marked and line.id in settled.owned and step.delivery.id not in settled.started:
            put_back(line.id, line.claim.epoch, step.delivery.id)
            slot.may_be_marked = False


def _released(steps: Sequence[Taken]) -> Iterator[LineUpdate]:
    """Yield the updates of the lines of which every slot rests now."""
    lines = {slot.line.id: slot.line for slot, step in steps if isinstance(step, Rest)}
    rest = Counter(slot.line.id for slot, step in steps if isinstance(step, Rest))
    for line in lines.values():
        if len(line.resting) + rest[line.id] == len(line.slots):
            yield line.update(let_go=True)
