"""What a round of the driver settles: everything its lines ended, will send next, and let go."""

import time
from collections.abc import Sequence

from delivery.lines import DrivenLine
from delivery.settlements import Settled, Settlement, Withheld
from delivery.settling import settle
from delivery.steps import Rest, Send, Step


class Batch:
    """The steps of one round, as one statement; settling it again after a failure is safe."""

    def __init__(self, steps: Sequence[tuple[DrivenLine, Step]]) -> None:
        self._epochs = {line.id: line.claim.epoch for line, _ in steps}
        self._settlements = [step.ended for _, step in steps if isinstance(step.ended, Settlement)]
        self._withheld = [step.ended for _, step in steps if isinstance(step.ended, Withheld)]
        self._marks = [line.mark(step.delivery) for line, step in steps if isinstance(step, Send)]
        self._renewed = [line for line, step in steps if isinstance(step, Send) and not line.fits_the_lease()]
        self._states = [line.state(let_go=False) for line in self._renewed]
        self._states += [line.state(let_go=True, hold=step.hold) for line, step in steps if isinstance(step, Rest)]

    def settle(self) -> Settled:
        """Settle it all, and note on the lines that their leases were renewed."""
        if not (self._settlements or self._withheld or self._marks or self._states):
            return Settled(frozenset(self._epochs), frozenset(), frozenset(), {})
        before = time.monotonic()
        settled = settle(
            self._epochs,
            settlements=self._settlements,
            marks=self._marks,
            states=self._states,
            withheld=self._withheld,
        )
        for line in self._renewed:
            if line.id in settled.owned:
                line.renewed_at = before
        missed = [one for one in self._settlements if _was_missed(one, settled)]
        if missed:
            # Somebody asked to cancel after the statement had begun: its snapshot is older than the wish.
            lines = {one.line_id for one in missed}
            states = [state for state in self._states if state.line_id in lines]
            settle(self._epochs, settlements=missed, states=states)
        return settled


def _was_missed(settlement: Settlement, settled: Settled) -> bool:
    return settlement.line_id in settled.owned and settlement.delivery_id not in settled.ended
