"""What slots wait for besides an answer: a page, a rate, a script, new work, or their line's last request."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.db import Error

from delivery.callbacks.address import CallbackTerms
from delivery.webhook.parts import Outgoing
from delivery.webhook.transform import job_of
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.line import HANGS_SECONDS, ActiveLine, Slot
from delivery.worker.pages import PageRequest, read_pages
from delivery.worker.pending_settles import DatabaseBackoff
from delivery.worker.queue_pages import read_groups
from subscriptions.scripting.jobs import Made, NotRun, Result
from subscriptions.scripting.runner import ScriptRunner

LINGER_SECONDS: Final = 0.01
"""How often lines without work look for more, until their turn ends."""
LINGER_SHARE: Final = 0.25
"""Of the time, spent on looking at most: the more lines linger, the more rarely they look."""

Read = Callable[[Sequence[PageRequest], BodyBudget], Mapping[int, Buffer[Any]]]


class IdlePoll:
    """The strands that linger, and when they look again."""

    def __init__(self) -> None:
        self.strands: list[Slot] = []
        self.until = 0.0
        """Monotonic time of the next look."""

    def add(self, strand: Slot) -> None:
        """Let a strand linger; nobody waits for its line meanwhile, unless another strand is under way."""
        if not strand.line.is_waiting:
            strand.line.run.idle(strand.line.id)
        self.strands.append(strand)

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is not ours any more."""
        self.strands = [strand for strand in self.strands if strand.line is not line]

    def take_due(self, now: float) -> list[Slot]:
        """Return all of them if it is time to look, for the caller to look at."""
        if now < self.until:
            return []
        strands, self.strands = self.strands, []
        return strands

    def looked(self, since: float) -> None:
        """Choose when to look again, after a look that began at `since`."""
        now = time.monotonic()
        self.until = now + max(LINGER_SECONDS, (now - since) / LINGER_SHARE)

    def patience(self, now: float) -> float | None:
        """Return the seconds to the next look, None where there is nothing to look for."""
        return max(0.0, self.until - now) if self.strands else None


class RateWait:
    """The strands that wait for a rate, and until when; times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._strands: dict[Slot, float] = {}

    def add(self, strand: Slot, seconds: float) -> None:
        """Let a strand wait; nobody waits for its line meanwhile, unless another strand is under way."""
        if not strand.line.is_waiting:
            strand.line.run.idle(strand.line.id)
        self._strands[strand] = time.monotonic() + seconds

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is not ours any more."""
        self._strands = {strand: until for strand, until in self._strands.items() if strand.line is not line}

    def take_due(self, now: float) -> list[Slot]:
        """Return those that have waited long enough, and those of lines that stop."""
        due = [strand for strand, until in self._strands.items() if until <= now or strand.line.stopping]
        for strand in due:
            del self._strands[strand]
        return due

    def patience(self, now: float) -> float | None:
        """Return the seconds until the first one goes on, None where none waits."""
        return max(0.0, min(self._strands.values()) - now) if self._strands else None


class Parked:
    """Strands at rest, of lines that are not at rest wholly."""

    def __init__(self) -> None:
        self._lines: list[ActiveLine] = []

    def add(self, strand: Slot) -> bool:
        """Note that a strand rests; say whether its whole line does now."""
        line = strand.line
        line.resting.append(strand)
        if len(line.resting) == len(line.strands):
            self.lose(line)
            return True
        if len(line.resting) == 1:
            self._lines.append(line)
        return False

    def lose(self, line: ActiveLine) -> None:
        """Forget a line."""
        if len(line.strands) > 1:
            self._lines = [other for other in self._lines if other is not line]

    def take_called(self, now: float) -> list[Slot]:
        """Return the strands that go on: a request of their line hangs, and what others wait for must not (6.6)."""
        called: list[Slot] = []
        for line in self._lines:
            if line.hangs(now) and not line.must_stop():
                called += line.resting
                line.resting = []
        self._lines = [line for line in self._lines if line.resting]
        return called

    def patience(self) -> float | None:
        """Return the seconds after which one may be called, None where none rests."""
        return HANGS_SECONDS if self._lines else None


class ScriptWait:
    """The scripts of the driver's strands."""

    def __init__(self, runner: ScriptRunner, budget: BodyBudget) -> None:
        self._runner = runner
        self._budget = budget

    def run(self, strand: Slot, delivery: Outgoing) -> None:
        """Let the script of `delivery` run for a strand."""
        strand.prepare(delivery)
        self._runner.run(strand, job_of(delivery))

    def with_room(self, strand: Slot, result: Result) -> Result:
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


class PageReader:
    """Reads once for all the strands of a line that wait; on a database error they wait on."""

    def __init__(self, budget: BodyBudget, terms: CallbackTerms, outage: DatabaseBackoff) -> None:
        self._budget = budget
        self._outage = outage
        self._read_groups = partial(read_groups, terms=terms)
        self._waiting: list[Slot] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, strand: Slot) -> None:
        """Let a strand wait for a page."""
        self._waiting.append(strand)

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is not ours any more."""
        self._waiting = [strand for strand in self._waiting if strand.line is not line]

    def read(self) -> list[Slot]:
        """Give new hands to the lines of all that wait; return the strands that may go on."""
        strands, self._waiting = self._waiting, []
        of_groups = [strand for strand in strands if strand.line.is_sender]
        if not of_groups:
            return self._read(strands, read_pages)
        others = [strand for strand in strands if not strand.line.is_sender]
        return self._read(of_groups, self._read_groups) + self._read(others, read_pages)

    def _read(self, strands: list[Slot], read: Read) -> list[Slot]:
        if not strands:
            return []
        lines = [*{strand.line.id: strand.line for strand in strands}.values()]
        for line in lines:
            line.give_hand_back(self._budget)
        try:
            hands = read([line.wanted() for line in lines], self._budget)
        except Error as failure:
            self._waiting += strands
            self._outage.begin(failure)
            return []
        for line in lines:
            line.receive(hands[line.id])
        return strands
