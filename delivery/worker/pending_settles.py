"""Steps waiting to be settled: they survive every database failure until they are settled or their line is lost."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError

from broker_project.core.db import forget_connection
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.queue_settle import PUT_OFF_SECONDS, put_back, settle_groups
from delivery.worker.settle import settle
from delivery.worker.settlements import LineUpdate, Settled, Settlement, Withheld
from delivery.worker.steps import Rest, Send, Step

log = structlog.get_logger(__name__)

Verdict = tuple[Slot, Step, Settled | None]
"""A step and what its settle did; None: the line is lost."""

Taken = tuple[Slot, Step]

RETRY_SECONDS: Final = 0.25
"""Pause before a database that failed is asked again; nothing is forgotten meanwhile."""
LOCKED_SECONDS: Final = 0.02
"""The same for a line that is locked: whoever cancels much lets go of it again and again, but not for long."""


class DatabaseBackoff:
    """The last time that the database failed, for all who ask it."""

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
        self.until = time.monotonic() + RETRY_SECONDS
        forget_connection()


class PendingSettles:
    """Steps in the order in which they came; a settle is safe to repeat, and the epoch tells whose the line is."""

    def __init__(self, outage: DatabaseBackoff) -> None:
        self._outage = outage
        self._steps: list[Taken] = []
        self.locked: list[Taken] = []
        """Of lines that somebody else has locked for a moment."""

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, slot: Slot, step: Step) -> None:
        """Take on what a slot wants next."""
        self._steps.append((slot, step))

    def take_locked(self) -> None:
        """Try those of locked lines again."""
        self._steps, self.locked = self._steps + self.locked, []

    def keep(self, steps: Sequence[Taken]) -> None:
        """Settle these again later; whether they have been, nobody knows."""
        for slot, step in steps:
            slot.may_be_marked = isinstance(step, Send)
        self._steps = [*steps, *self._steps]

    def lose(self, line: ActiveLine) -> None:
        """Forget what a line has here."""
        self._steps = [taken for taken in self._steps if taken[0].line is not line]
        self.locked = [taken for taken in self.locked if taken[0].line is not line]

    def settle(self) -> Iterator[Verdict]:
        """Settle all there is: a statement for the groups of QUEUE senders and one for the rest, each on its own."""
        steps, self._steps = self._steps, []
        of_groups = [taken for taken in steps if taken[0].line.is_sender]
        if of_groups:
            steps = [taken for taken in steps if not taken[0].line.is_sender]
            yield from self._settle(of_groups, of_groups=True)
        if steps:
            yield from self._settle(steps, of_groups=False)

    def _settle(self, steps: list[Taken], *, of_groups: bool) -> Iterator[Verdict]:
        try:
            settled = _settled(steps, of_groups=of_groups)
        except (OperationalError, InterfaceError) as failure:
            self.keep(steps)
            self._outage.begin(failure)
        except DatabaseError:
            yield from self._settle_apart(steps, of_groups=of_groups)
        else:
            yield from self._verdicts(steps, settled)

    def _settle_apart(self, steps: list[Taken], *, of_groups: bool) -> Iterator[Verdict]:
        """Settle step by step after a data error, so that the offender stops and its neighbours go on."""
        for taken in steps:
            slot, step = taken
            try:
                settled = _settled_alone(taken, of_groups=of_groups)
            except (OperationalError, InterfaceError) as failure:
                self.keep([taken])
                self._outage.begin(failure)
            except DatabaseError:
                log.exception("event_loop.line_dropped", line_id=slot.line.id)
                yield slot, step, None  # its lease runs out, then it is mended and tried again
            else:
                yield from self._verdicts([taken], settled)

    def _verdicts(self, steps: list[Taken], settled: Settled) -> Iterator[Verdict]:
        for slot, step in steps:
            line = slot.line
            if line.id in settled.locked:
                slot.may_be_marked |= isinstance(step, Send) and step.delivery.id in settled.started
                self.locked.append((slot, step))
            elif line.id in settled.owned:
                yield slot, step, settled
            else:
                log.warning("event_loop.fenced", line_id=line.id, epoch=line.claim.epoch)
                yield slot, step, None


def _settled(steps: list[Taken], *, of_groups: bool) -> Settled:
    """Settle them; what a sender may not send after all, though it may be marked as under way already, is put back."""
    settled = Batch(steps, of_groups=of_groups).settle()
    for slot, step in steps if of_groups else ():
        line = slot.line
        ours = slot.may_be_marked and line.id in settled.owned
        if ours and isinstance(step, Send) and step.delivery.id not in settled.started:
            put_back(line.id, line.claim.epoch, step.delivery.id)
            slot.may_be_marked = False
    return settled


def _settled_alone(taken: Taken, *, of_groups: bool) -> Settled:
    """Settle one step; of a sender's, what the database refuses is given up, and only its group waits."""
    slot, step = taken
    try:
        return _settled([taken], of_groups=of_groups)
    except OperationalError:
        raise
    except DatabaseError:
        if not (of_groups and step.ended):
            raise
        log.exception("event_loop.group_put_off", line_id=slot.line.id, delivery_id=step.ended.delivery_id)
        put_back(slot.line.id, slot.line.claim.epoch, step.ended.delivery_id, pause=PUT_OFF_SECONDS)
        return _settled([(slot, replace(step, ended=None))], of_groups=True)


class Batch:
    """The steps of one round, as one statement; settling it again after a failure is safe.

    Of subscribers' lines and the like, or of QUEUE senders' where `of_groups`: those need a statement of their own.
    """

    def __init__(self, steps: Sequence[Taken], *, of_groups: bool) -> None:
        self._of_groups = of_groups
        self._epochs = {slot.line.id: slot.line.claim.epoch for slot, _ in steps}
        self._settlements = [step.ended for _, step in steps if isinstance(step.ended, Settlement)]
        self._withheld = [step.ended for _, step in steps if isinstance(step.ended, Withheld)]
        self._marks = [slot.line.mark(step.delivery) for slot, step in steps if isinstance(step, Send)]
        sending = {slot.line.id: slot.line for slot, step in steps if isinstance(step, Send)}
        now = time.monotonic()
        self._renewed = [line for line in sending.values() if not line.fits_the_lease(now)]
        self._states = [line.state(let_go=False) for line in self._renewed]
        self._states += _let_go(steps)

    def settle(self) -> Settled:
        """Settle it all, and note on the lines that their leases were renewed.

        A line that is `locked` may be settled in part, and have things `started`: it is settled again as a whole.
        """
        if not (self._settlements or self._withheld or self._marks or self._states):
            return Settled(frozenset(self._epochs), frozenset(), frozenset(), {})
        before = time.monotonic()
        settled = self._recorded(self._settlements, self._states)
        for line in self._renewed:
            if line.id in settled.owned:
                line.renewed_at = before
        missed = [one for one in self._settlements if _was_missed(one, settled)]
        if missed:
            # Somebody asked to cancel after the statement had begun: its snapshot is older than the wish.
            lines = {one.line_id for one in missed}
            states = [state for state in self._states if state.line_id in lines]
            skipped = self._record_again(missed, states).locked
            settled = replace(settled, owned=settled.owned - skipped, locked=settled.locked | skipped)
        return settled

    def _recorded(self, settlements: list[Settlement], states: list[LineUpdate]) -> Settled:
        if self._of_groups:
            return settle_groups(self._epochs, settlements=settlements, marks=self._marks, states=states)
        return settle(self._epochs, settlements=settlements, marks=self._marks, states=states, withheld=self._withheld)

    def _record_again(self, settlements: list[Settlement], states: list[LineUpdate]) -> Settled:
        record = settle_groups if self._of_groups else settle
        return record(self._epochs, settlements=settlements, states=states)


def _let_go(steps: Sequence[Taken]) -> Iterator[LineUpdate]:
    """Yield what is written of the lines of which every slot rests now."""
    lines = {slot.line.id: slot.line for slot, step in steps if isinstance(step, Rest)}
    rest = Counter(slot.line.id for slot, step in steps if isinstance(step, Rest))
    for line in lines.values():
        if len(line.resting) + rest[line.id] == len(line.slots):
            yield line.state(let_go=True)


def _was_missed(settlement: Settlement, settled: Settled) -> bool:
    return settlement.line_id in settled.owned and settlement.delivery_id not in settled.ended
