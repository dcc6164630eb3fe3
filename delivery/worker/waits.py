"""The strands that wait for a page of their line, and reading it: one statement for all lines of a kind."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import Error

from delivery.callbacks.terms import CallbackTerms
from delivery.worker.buffer import BodyBudget, Hand
from delivery.worker.line import DrivenLine, Strand
from delivery.worker.outages import Outage
from delivery.worker.pages import Wanted
from delivery.worker.queue_pages import read_groups
from delivery.worker.reading import read_pages

Read = Callable[[Sequence[Wanted], BodyBudget], Mapping[int, Hand[Any]]]


class Paging:
    """Reads once for all the strands of a line that wait; on a database error they wait on."""

    def __init__(self, budget: BodyBudget, terms: CallbackTerms, outage: Outage) -> None:
        self._budget = budget
        self._outage = outage
        self._read_groups = partial(read_groups, terms=terms)
        self._waiting: list[Strand] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, strand: Strand) -> None:
        """Let a strand wait for a page."""
        self._waiting.append(strand)

    def lose(self, line: DrivenLine) -> None:
        """Forget a line that is not ours any more."""
        self._waiting = [strand for strand in self._waiting if strand.line is not line]

    def read(self) -> list[Strand]:
        """Give new hands to the lines of all that wait; return the strands that may go on."""
        strands, self._waiting = self._waiting, []
        of_groups = [strand for strand in strands if strand.line.is_sender]
        if not of_groups:
            return self._read(strands, read_pages)
        others = [strand for strand in strands if not strand.line.is_sender]
        return self._read(of_groups, self._read_groups) + self._read(others, read_pages)

    def _read(self, strands: list[Strand], read: Read) -> list[Strand]:
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
