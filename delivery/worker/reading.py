"""Read pages for the slots that wait for them, and undo what a page that was not heard of may have marked."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import Error

from delivery.callbacks.address import CallbackTerms
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.line import ActiveLine
from delivery.worker.pages import read_pages, unmark
from delivery.worker.queue import read_groups
from delivery.worker.settling import DatabaseBackoff
from delivery.worker.slots import Slot, Slots, SlotState


class Reading:
    """Reads the pages of a process's lines. If the database is away, slots wait on."""

    def __init__(self, slots: Slots, backoff: DatabaseBackoff, budget: BodyBudget, terms: CallbackTerms) -> None:
        self._slots = slots
        self._backoff = backoff
        self._budget = budget
        self._read_groups = partial(read_groups, terms=terms)

    def read(self) -> list[ActiveLine]:
        """Give pages to the lines of all slots that wait for one; return the lines that are given up.

        One statement for QUEUE senders, one for the others.
        """
        uncertain = self._unmark([slot.line for slot in self._slots[SlotState.READING] if slot.line.unheard])
        waiting = [slot for slot in self._slots[SlotState.READING] if not slot.line.unheard]
        self._read([slot for slot in waiting if slot.line.is_sender], self._read_groups)
        self._read([slot for slot in waiting if not slot.line.is_sender], read_pages)
        return uncertain

    def _read(self, slots: Sequence[Slot], read: Callable[..., Mapping[int, Buffer[Any]]]) -> None:
        lines = [*{slot.line.id: slot.line for slot in slots}.values()]
        for line in lines:
            line.return_buffer(self._budget)
        requests = [line.page_request() for line in lines]
        try:
            buffers = read(requests, self._budget) if lines else {}
        except Error as failure:
            self._backoff.begin(failure)
            for line, request in zip(lines, requests, strict=True):
                line.unheard = request if request.mark_as else line.unheard
            return
        for line, request in zip(lines, requests, strict=True):
            if line.id in buffers:
                line.receive(buffers[line.id])
            else:
                line.unheard = request
        self._share(slots)

    def _share(self, slots: Sequence[Slot]) -> None:
        """Let slots take of the page they waited for; in a keyed line idle ones too, since it may have free keys."""
        for slot in slots:
            if not slot.line.unheard:
                self._slots.advance(slot, None)
        if keyed := {slot.line for slot in slots if slot.line.is_keyed}:
            for slot in self._slots[SlotState.IDLE]:
                if slot.line in keyed and slot.line.buffer.has_next:
                    self._slots.advance(slot, None)

    def _unmark(self, lines: Sequence[ActiveLine]) -> list[ActiveLine]:
        """Undo what pages that were not heard of may have marked; return the lines where that is not certain."""
        if not lines:
            return []
        try:
            certain = unmark([line.unheard for line in lines if line.unheard])
        except Error as failure:
            self._backoff.begin(failure)
            return []
        uncertain = [line for line in lines if line.id not in certain]
        for line in lines:
            line.unheard = None if line.id in certain else line.unheard
        return uncertain
