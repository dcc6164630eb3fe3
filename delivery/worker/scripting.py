"""Running the scripts that strands wait for, within the bodies that a process may hold."""

from delivery.webhook.transform import job_of
from delivery.worker.buffer import BodyBudget, InHand
from delivery.worker.line import Strand
from subscriptions.scripting.jobs import Made, NotRun, Result
from subscriptions.scripting.runner import ScriptRunner


class Scripting:
    """The scripts of the driver's strands."""

    def __init__(self, runner: ScriptRunner, budget: BodyBudget) -> None:
        self._runner = runner
        self._budget = budget

    def run(self, strand: Strand, delivery: InHand) -> None:
        """Let the script of `delivery` run for a strand."""
        strand.prepare(delivery)
        self._runner.run(strand, job_of(delivery))

    def with_room(self, strand: Strand, result: Result) -> Result:
        """Return a script's result, `NotRun` where the process holds too many bodies for what it made."""
        if isinstance(result, Made) and strand.has_room(len(result.body or b""), self._budget):
            return result
        if isinstance(result, Made | NotRun):
            strand.line.give_hand_back(self._budget)
            strand.give_back(self._budget)
            return NotRun()
        return result

    def patience(self) -> float | None:
        """Return the seconds after which there is something to do for a script, None where none runs."""
        return self._runner.patience()
