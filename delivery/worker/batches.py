"""What a round of the driver settles: everything its lines ended, will send next, and let go."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from delivery.worker.line import Strand
from delivery.worker.lines import settle
from delivery.worker.settlements import LineState, Settled, Settlement, Withheld
from delivery.worker.settling import settle_groups
from delivery.worker.steps import Rest, Send, Step

Taken = tuple[Strand, Step]


class Batch:
    """The steps of one round, as one statement; settling it again after a failure is safe.

    Of subscribers' lines and the like, or of QUEUE senders' where `of_groups`: those need a statement of their own.
    """

    def __init__(self, steps: Sequence[Taken], *, of_groups: bool) -> None:
        self._of_groups = of_groups
        self._epochs = {strand.line.id: strand.line.claim.epoch for strand, _ in steps}
        self._settlements = [step.ended for _, step in steps if isinstance(step.ended, Settlement)]
        self._withheld = [step.ended for _, step in steps if isinstance(step.ended, Withheld)]
        self._marks = [strand.line.mark(step.delivery) for strand, step in steps if isinstance(step, Send)]
        sending = {strand.line.id: strand.line for strand, step in steps if isinstance(step, Send)}
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

    def _recorded(self, settlements: list[Settlement], states: list[LineState]) -> Settled:
        if self._of_groups:
            return settle_groups(self._epochs, settlements=settlements, marks=self._marks, states=states)
        return settle(self._epochs, settlements=settlements, marks=self._marks, states=states, withheld=self._withheld)

    def _record_again(self, settlements: list[Settlement], states: list[LineState]) -> Settled:
        record = settle_groups if self._of_groups else settle
        return record(self._epochs, settlements=settlements, states=states)


def _let_go(steps: Sequence[Taken]) -> Iterator[LineState]:
    """Yield what is written of the lines of which every strand rests now."""
    lines = {strand.line.id: strand.line for strand, step in steps if isinstance(step, Rest)}
    rest = Counter(strand.line.id for strand, step in steps if isinstance(step, Rest))
    for line in lines.values():
        if len(line.resting) + rest[line.id] == len(line.strands):
            yield line.state(let_go=True)


def _was_missed(settlement: Settlement, settled: Settled) -> bool:
    return settlement.line_id in settled.owned and settlement.delivery_id not in settled.ended
