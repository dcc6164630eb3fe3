"""Subscribers that get the same events in other ways: several at a time, tried again apart, as a script makes them."""

import dataclasses
from typing import ClassVar

from tests.faults.apart import APART, is_doomed, times_refused
from tests.faults.books import by_status, set_aside
from tests.faults.endpoints import Endpoint
from tests.faults.everything.beside import Beside
from tests.faults.everything.scripted import SCRIPT, ScriptedEndpoint
from tests.faults.exchanges import out_of_order
from tests.faults.figures import Figures
from tests.faults.figures import figures as figures_of
from tests.faults.lanes import figures_of_lanes
from tests.faults.load import Load
from tests.faults.publishers import begun_by, published_by
from tests.faults.refusing import Refusing
from tests.faults.several import figures_of_several

AT_A_TIME = 8
RETRIES = 6
"""More than in the case with kills alone: a try that was cut off counts as one."""


class Several(Beside):
    """A `CONCURRENT` subscriber."""

    kind: ClassVar[str] = "concurrent"
    most_copies: ClassVar[int | None] = AT_A_TIME

    @classmethod
    def of(cls, load: Load) -> "Several":
        endpoint = Endpoint("several", load.receiver)
        subscribed = load.broker.subscribe(load.receiver.url("/several"), *load.event_types, concurrency=AT_A_TIME)
        return cls(load, subscribed, endpoint)

    def ended(self) -> set[int]:
        return self.endpoint.accepted()

    def figures(self) -> Figures:
        published, begun = published_by(self.load.publishers), begun_by(self.load.publishers)
        requests, faults = self.endpoint.exchanges, self.load.faults
        return figures_of_several(published, begun, requests, faults=faults, unfinished=self.unfinished())


class Apart(Beside):
    """A subscriber whose failed deliveries are tried again apart; some are never taken."""

    kind: ClassVar[str] = "retry-line"

    @classmethod
    def of(cls, load: Load) -> "Apart":
        endpoint = Refusing("apart", load.receiver, times=times_refused)
        policy = load.broker.retry_policy(**APART | {"max_retries": RETRIES})
        subscribed = load.broker.subscribe(load.receiver.url("/apart"), *load.event_types, retry_policy=policy)
        return cls(load, subscribed, endpoint)

    def ended(self) -> set[int]:
        return self.endpoint.accepted() | {one.number for one in self.endpoint.exchanges if is_doomed(one.number)}

    def figures(self) -> Figures:
        published, begun = published_by(self.load.publishers), begun_by(self.load.publishers)
        doomed = {number for number in begun if is_doomed(number)}
        requests, faults = self.endpoint.exchanges, self.load.faults
        made = figures_of_lanes(published, begun, requests, doomed=doomed, faults=faults, unfinished=self.unfinished())
        books = by_status(self.load.broker, self.subscribed)
        ended = {status: {*numbers} for status, numbers in books.items()}
        wrong = ended.pop("DELIVERED", set()) ^ self.endpoint.accepted()
        wrong |= ended.pop("FAILED", set()) ^ {one.number for one in requests if one.number in doomed}
        return dataclasses.replace(made, misrecorded=len(wrong.union(*ended.values())))


class Scripted(Beside):
    """A subscriber that gets what a script makes of each event."""

    kind: ClassVar[str] = "scripts"

    @classmethod
    def of(cls, load: Load) -> "Scripted":
        endpoint = ScriptedEndpoint("scripted", load.receiver)
        subscribed = load.broker.subscribe(load.receiver.url("/scripted"), *load.event_types, script=SCRIPT)
        return cls(load, subscribed, endpoint)

    def ended(self) -> set[int]:
        return self.endpoint.accepted()

    def figures(self) -> Figures:
        published, begun = published_by(self.load.publishers), begun_by(self.load.publishers)
        line = {self.endpoint.name: self.endpoint.exchanges}
        made = figures_of(published, begun, line, faults=self.load.faults, unfinished=self.unfinished())
        return dataclasses.replace(made, inverted=self._inverted())

    def _inverted(self) -> int:
        """Count what overtook, but for what was set aside since its script had no time, on a busy machine (8.3)."""
        events = {event.number: event for event in published_by(self.load.publishers)}
        aside = set_aside(self.load.broker, self.subscribed)
        return out_of_order([one for one in self.endpoint.exchanges if one.number not in aside], events)
