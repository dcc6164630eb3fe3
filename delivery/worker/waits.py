"""What slots wait for besides an answer: a page, a rate limit, new work, or their line's last request."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import Error

from delivery.callbacks.address import CallbackTerms
from delivery.limits import HANGS_SECONDS, LINGER_SECONDS, LINGER_SHARE
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.pages import PageRequest, read_pages
from delivery.worker.pending_settles import DatabaseBackoff
from delivery.worker.queue import read_groups

ReadPages = Callable[[Sequence[PageRequest], BodyBudget], Mapping[int, Buffer[Any]]]


class IdlePoll:
    """The slots that linger, and when they look for work again."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.until = 0.0
        """Monotonic time of the next look."""

    def add(self, slot: Slot) -> None:
        """Let a slot linger; its turn may end, unless another slot of the line waits for an answer."""
        if not slot.line.is_waiting:
            slot.line.run.idle(slot.line.id)
        self.slots.append(slot)

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is no longer ours."""
        self.slots = [slot for slot in self.slots if slot.line is not line]

    def take_due(self, now: float) -> list[Slot]:
        """Return all slots if it is time to look, for the caller to look."""
        if now < self.until:
            return []
        slots, self.slots = self.slots, []
        return slots

    def looked(self, since: float) -> None:
        """Choose when to look again, after a look that began at `since`."""
        now = time.monotonic()
        self.until = now + max(LINGER_SECONDS, (now - since) / LINGER_SHARE)

    def patience(self, now: float) -> float | None:
        """Return the seconds to the next look, None if no slot lingers."""
        return max(0.0, self.until - now) if self.slots else None


class RateWait:
    """The slots that wait for a rate limit, and until when; times are monotonic, in seconds."""

    def __init__(self) -> None:
        self._slots: dict[Slot, float] = {}

    def add(self, slot: Slot, seconds: float) -> None:
        """Let a slot wait; its turn may end, unless another slot of the line waits for an answer."""
        if not slot.line.is_waiting:
            slot.line.run.idle(slot.line.id)
        self._slots[slot] = time.monotonic() + seconds

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is no longer ours."""
        self._slots = {slot: until for slot, until in self._slots.items() if slot.line is not line}

    def take_due(self, now: float) -> list[Slot]:
        """Return the slots that have waited long enough, and those of lines that stop."""
        due = [slot for slot, until in self._slots.items() if until <= now or slot.line.stopping]
        for slot in due:
            del self._slots[slot]
        return due

    def patience(self, now: float) -> float | None:
        """Return the seconds until the first slot goes on, None if none waits."""
        return max(0.0, min(self._slots.values()) - now) if self._slots else None


class Parked:
    """Slots at rest, of lines that are not wholly at rest."""

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
        """Return the slots that go on: a request of their line hangs, and other work must not wait for it (6.6)."""
        called: list[Slot] = []
        for line in self._lines:
            if line.hangs(now) and not line.must_stop():
                called += line.resting
                line.resting = []
        self._lines = [line for line in self._lines if line.resting]
        return called

    def patience(self) -> float | None:
        """Return the seconds after which a slot may be called back, None if none rests."""
        return HANGS_SECONDS if self._lines else None


class PageReader:
    """The slots that wait for a page: it reads once for all slots of a line; on a database error they wait on."""

    def __init__(self, budget: BodyBudget, terms: CallbackTerms, backoff: DatabaseBackoff) -> None:
        self._budget = budget
        self._backoff = backoff
        self._read_groups = partial(read_groups, terms=terms)
        self._waiting: list[Slot] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, slot: Slot) -> None:
        """Let a slot wait for a page."""
        self._waiting.append(slot)

    def lose(self, line: ActiveLine) -> None:
        """Forget a line that is no longer ours."""
        self._waiting = [slot for slot in self._waiting if slot.line is not line]

    def read(self) -> list[Slot]:
        """Give new pages to the lines of all that wait; return the slots that may go on."""
        slots, self._waiting = self._waiting, []
        of_senders = [slot for slot in slots if slot.line.is_sender]
        if not of_senders:
            return self._read(slots, read_pages)
        others = [slot for slot in slots if not slot.line.is_sender]
        return self._read(of_senders, self._read_groups) + self._read(others, read_pages)

    def _read(self, slots: list[Slot], read: ReadPages) -> list[Slot]:
        if not slots:
            return []
        lines = [*{slot.line.id: slot.line for slot in slots}.values()]
        for line in lines:
            line.return_buffer(self._budget)
        try:
            buffers = read([line.page_request() for line in lines], self._budget)
        except Error as failure:
            self._waiting += slots
            self._backoff.begin(failure)
            return []
        for line in lines:
            line.receive(buffers[line.id])
        return slots
