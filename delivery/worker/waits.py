"""What slots wait for besides an answer: a page, a rate, a script, new work, or their line's last request."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from django.db import Error

from delivery.callbacks.address import CallbackTerms
from delivery.webhook.parts import Outgoing
from delivery.webhook.transform import job_for
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
    """The slots that linger, and when they look again."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.until = 0.0
        """Monotonic time of the next look."""

    def add(self, slot: Slot) -> None:
        """Let a slot linger; nobody waits for its line meanwhile, unless another slot is under way."""
        if not slot.line.is_waiting:
            slot.line.run.idle(slot.line.id)
        self.slots.append(slot)

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is not ours any more."""
        self.slots = [slot for slot in self.slots if slot.line is not line]

    def take_due(self, now: float) -> list[Slot]:
        """Return all of them if it is time to look, for the caller to look at."""
        if now < self.until:
            return []
        slots, self.slots = self.slots, []
        return slots

    def looked(self, since: float) -> None:
        """Choose when to look again, after a look that began at `since`."""
        now = time.monotonic()
        self.until = now + max(LINGER_SECONDS, (now - since) / LINGER_SHARE)

    def patience(self, now: float) -> float | None:
        """Return the seconds to the next look, None where there is nothing to look for."""
        return max(0.0, self.until - now) if self.slots else None


class RateWait:
    """The slots that wait for a rate, and until when; times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._slots: dict[Slot, float] = {}

    def add(self, slot: Slot, seconds: float) -> None:
        """Let a slot wait; nobody waits for its line meanwhile, unless another slot is under way."""
        if not slot.line.is_waiting:
            slot.line.run.idle(slot.line.id)
        self._slots[slot] = time.monotonic() + seconds

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is not ours any more."""
        self._slots = {slot: until for slot, until in self._slots.items() if slot.line is not line}

    def take_due(self, now: float) -> list[Slot]:
        """Return those that have waited long enough, and those of lines that stop."""
        due = [slot for slot, until in self._slots.items() if until <= now or slot.line.stopping]
        for slot in due:
            del self._slots[slot]
        return due

    def patience(self, now: float) -> float | None:
        """Return the seconds until the first one goes on, None where none waits."""
        return max(0.0, min(self._slots.values()) - now) if self._slots else None


class Parked:
    """Slots at rest, of lines that are not at rest wholly."""

    def __init__(self) -> None:
        self._lines: list[ActiveLine] = []

    def add(self, slot: Slot) -> bool:
        """Note that a slot rests; say whether its whole line does now."""
        line = slot.line
        line.resting.append(slot)
        if len(line.resting) == len(line.slots):
            self.lose(line)
            return True
        if len(line.resting) == 1:
            self._lines.append(line)
        return False

    def lose(self, line: ActiveLine) -> None:
        """Forget a line."""
        if len(line.slots) > 1:
            self._lines = [other for other in self._lines if other is not line]

    def take_called(self, now: float) -> list[Slot]:
        """Return the slots that go on: a request of their line hangs, and what others wait for must not (6.6)."""
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
    """The scripts of the event loop's slots."""

    def __init__(self, runner: ScriptRunner, budget: BodyBudget) -> None:
        self._runner = runner
        self._budget = budget

    def run(self, slot: Slot, delivery: Outgoing) -> None:
        """Let the script of `delivery` run for a slot."""
        slot.prepare(delivery)
        self._runner.run(slot, job_for(delivery.id, delivery.content, delivery.destination))

    def with_room(self, slot: Slot, result: Result) -> Result:
        """Return a script's result, `NotRun` where the process holds too many bodies for what it made."""
        if isinstance(result, Made) and slot.has_room(len(result.body or b""), self._budget):
            return result
        if isinstance(result, Made | NotRun):
            slot.line.return_buffer(self._budget)
            slot.give_back(self._budget)
            return NotRun()
        return result

    def patience(self) -> float | None:
        """Return the seconds after which there is something to do for a script, None where none runs."""
        return self._runner.patience()


class PageReader:
    """Reads once for all the slots of a line that wait; on a database error they wait on."""

    def __init__(self, budget: BodyBudget, terms: CallbackTerms, outage: DatabaseBackoff) -> None:
        self._budget = budget
        self._outage = outage
        self._read_groups = partial(read_groups, terms=terms)
        self._waiting: list[Slot] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, slot: Slot) -> None:
        """Let a slot wait for a page."""
        self._waiting.append(slot)

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is not ours any more."""
        self._waiting = [slot for slot in self._waiting if slot.line is not line]

    def read(self) -> list[Slot]:
        """Give new buffers to the lines of all that wait; return the slots that may go on."""
        slots, self._waiting = self._waiting, []
        of_groups = [slot for slot in slots if slot.line.is_sender]
        if not of_groups:
            return self._read(slots, read_pages)
        others = [slot for slot in slots if not slot.line.is_sender]
        return self._read(of_groups, self._read_groups) + self._read(others, read_pages)

    def _read(self, slots: list[Slot], read: Read) -> list[Slot]:
        if not slots:
            return []
        lines = [*{slot.line.id: slot.line for slot in slots}.values()]
        for line in lines:
            line.return_buffer(self._budget)
        try:
            buffers = read([line.wanted() for line in lines], self._budget)
        except Error as failure:
            self._waiting += slots
            self._outage.begin(failure)
            return []
        for line in lines:
            line.receive(buffers[line.id])
        return slots
