"""The steps that wait to be settled: kept through every failure of the database, until they are or the line is lost."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError

from delivery.worker.batches import Batch, Taken
from delivery.worker.line import DrivenLine, Strand
from delivery.worker.outages import Outage
from delivery.worker.settlements import Settled
from delivery.worker.settling import PUT_OFF_SECONDS, put_back
from delivery.worker.steps import Send, Step

log = structlog.get_logger(__name__)

Verdict = tuple[Strand, Step, Settled | None]
"""A step and what its settle did; None: the line is lost."""


class Unsettled:
    """Steps in the order in which they came; a settle is safe to repeat, and the epoch tells whose the line is."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._steps: list[Taken] = []
        self.locked: list[Taken] = []
        """Of lines that somebody else has locked for a moment."""

    def __bool__(self) -> bool:
        return bool(self._steps)

    def add(self, strand: Strand, step: Step) -> None:
        """Take on what a strand wants next."""
        self._steps.append((strand, step))

    def take_locked(self) -> None:
        """Try those of locked lines again."""
        self._steps, self.locked = self._steps + self.locked, []

    def keep(self, steps: Sequence[Taken]) -> None:
        """Settle these again later; whether they have been, nobody knows."""
        for strand, step in steps:
            strand.may_be_marked = isinstance(step, Send)
        self._steps = [*steps, *self._steps]

    def lose(self, line: DrivenLine) -> None:
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
            strand, step = taken
            try:
                settled = _settled_alone(taken, of_groups=of_groups)
            except (OperationalError, InterfaceError) as failure:
                self.keep([taken])
                self._outage.begin(failure)
            except DatabaseError:
                log.exception("driver.line_dropped", line_id=strand.line.id)
                yield strand, step, None  # its lease runs out, then it is mended and tried again
            else:
                yield from self._verdicts([taken], settled)

    def _verdicts(self, steps: list[Taken], settled: Settled) -> Iterator[Verdict]:
        for strand, step in steps:
            line = strand.line
            if line.id in settled.locked:
                strand.may_be_marked |= isinstance(step, Send) and step.delivery.id in settled.started
                self.locked.append((strand, step))
            elif line.id in settled.owned:
                yield strand, step, settled
            else:
                log.warning("driver.fenced", line_id=line.id, epoch=line.claim.epoch)
                yield strand, step, None


def _settled(steps: list[Taken], *, of_groups: bool) -> Settled:
    """Settle them; what a sender may not send after all, though it may be marked as under way already, is put back."""
    settled = Batch(steps, of_groups=of_groups).settle()
    for strand, step in steps if of_groups else ():
        line = strand.line
        ours = strand.may_be_marked and line.id in settled.owned
        if ours and isinstance(step, Send) and step.delivery.id not in settled.started:
            put_back(line.id, line.claim.epoch, step.delivery.id)
            strand.may_be_marked = False
    return settled


def _settled_alone(taken: Taken, *, of_groups: bool) -> Settled:
    """Settle one step; of a sender's, what the database refuses is given up, and only its group waits."""
    strand, step = taken
    try:
        return _settled([taken], of_groups=of_groups)
    except OperationalError:
        raise
    except DatabaseError:
        if not (of_groups and step.ended):
            raise
        log.exception("driver.group_put_off", line_id=strand.line.id, delivery_id=step.ended.delivery_id)
        put_back(strand.line.id, strand.line.claim.epoch, step.ended.delivery_id, pause=PUT_OFF_SECONDS)
        return _settled([(strand, replace(step, ended=None))], of_groups=True)
