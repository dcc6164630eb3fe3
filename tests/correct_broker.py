"""A broker that keeps the contract, in a few lines: what its lines leave behind is what the audit must explain.

Publishes overlap, filters and scripts hold, scripts are lost, endpoints are down, refuse, and answer 5xx, subscriptions
and subscribers are switched off and on, workers die. What it shares with the real one is only what the contract says.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.frames import DAY, Row

LONGEST_PUBLISH: Final = 1.9
TURNS: Final = 400
"""After so many steps of its line the day ends, whatever still waits."""


@dataclass(frozen=True, slots=True)
class Publish:
    """A message, and when its publish began and was committed."""

    message_id: int
    created_at: float
    committed_at: float


@dataclass(slots=True)
class Waiting:
    """A delivery on its way."""

    id: int
    message_id: int
    subscription_id: int
    created_at: float
    committed_at: float
    held: bool = False
    due_at: float | None = None
    attempts: int = 0
    times_set_aside: int = 0
    sequence: int | None = None
    uncertain: bool = False
    status: str = "PENDING"
    finished_at: float | None = None


@dataclass(slots=True)
class History:
    """What happened to one subscriber on one day, as rows of silver; times as seconds since midnight."""

    subscriber_id: int
    deliveries: list[Waiting] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    changes: list[tuple[float, int | None, str]] = field(default_factory=list)
    releases: list[tuple[float, int]] = field(default_factory=list)

    def rows(self) -> dict[str, list[Row]]:
        """Return the rows by table."""
        owner = {"subscriber_id": self.subscriber_id, "subscriber": f"S{self.subscriber_id}"}
        return {
            "deliveries": [self._row(one) | owner for one in self.deliveries if one.attempts or one.sequence],
            "attempts": [{**row, **owner} for row in self.attempts],
            "status_changes": [
                {"subscriber_id": self.subscriber_id, "subscription_id": of, "at": _moment(at), "status": status}
                for at, of, status in self.changes
            ],
            "releases": [{"delivery_id": number, "at": _moment(at)} for at, number in self.releases],
        }

    def _row(self, one: Waiting) -> dict[str, object]:
        kept = ("id", "message_id", "subscription_id", "status", "attempts", "times_set_aside", "sequence", "uncertain")
        times = {"created_at": _moment(one.created_at)} | (
            {"finished_at": _moment(one.finished_at)} if one.finished_at else {}
        )
        return {name: getattr(one, name) for name in kept} | times | {"kind": "TOPIC"}


def announced(random: Random, first_id: int) -> list[Publish]:
    """Publish a day's messages, a few: ids in the order in which they are given out, somewhere within each publish."""
    publishes, at = [], 1.0
    for _ in range(random.randint(6, 16)):
        lasts = random.choice([0.005, 1.0, LONGEST_PUBLISH])
        publishes.append((at + random.random() * lasts, at, at + lasts))
        at += random.choice([0.0, 0.1, 1.0, 6.0, 60.0])
    return [Publish(number, *times) for number, (_, *times) in enumerate(sorted(publishes), first_id)]


def steadily(count: int, first_id: int) -> list[Publish]:
    """Publish four messages a second, one after the other."""
    return [Publish(first_id + number, 1 + number / 4, 1.005 + number / 4) for number in range(count)]


def _moment(seconds: float) -> dt.datetime:
    return DAY + dt.timedelta(seconds=seconds)


class Broker:
    """One subscriber with two subscriptions, and its line; others may be sent the same messages."""

    def __init__(
        self,
        subscriber_id: int,
        random: Random,
        publishes: Sequence[Publish],
        *,
        calm: bool = False,
        prompt: bool = False,
    ) -> None:
        self.history = History(subscriber_id)
        self._random = random
        self._calm = calm
        """Whether everything is taken at once and nothing goes wrong."""
        self._idle, self._took = ([0.05], [0.01]) if prompt else ([0.5, 3.0, 30.0], [0.01, 0.5])
        """So long it may not look whether there is something to send, and for an answer."""
        self._subscriptions = [subscriber_id * 10, subscriber_id * 10 + 1]
        self._inactive: set[int | None] = set()
        self._now = 0.0
        self._numbers = 0
        self._head: Waiting | None = None
        self._aside_next = False
        self._qualify(publishes)

    def day(self) -> History:
        """Let the day pass; return what happened."""
        for _ in range(TURNS):
            if not self._calm and self._random.random() < 0.02:
                self._switch()
            if not self._calm and self._random.random() < 0.2:
                self._release()
            taken = self._take()
            if taken:
                self._send(taken)
            else:
                self._now += self._random.choice(self._idle)
        return self.history

    def _qualify(self, publishes: Sequence[Publish]) -> None:
        for number, one in enumerate(publishes, 1):
            held = not self._calm and self._random.random() < 0.1
            subscription, delivery_id = (
                self._random.choice(self._subscriptions),
                self.history.subscriber_id * 1000 + number,
            )
            waiting = Waiting(delivery_id, one.message_id, subscription, one.created_at, one.committed_at, held)
            self.history.deliveries.append(waiting)

    def _switch(self) -> None:
        """Inactivate or activate a subscription, or the whole subscriber."""
        whose = self._random.choice([None, *self._subscriptions])
        self._inactive ^= {whose}
        self.history.changes.append((self._now, whose, "INACTIVE" if whose in self._inactive else "ACTIVE"))

    def _release(self) -> None:
        for one in self.history.deliveries:
            if one.held and one.committed_at <= self._now and self._random.random() < 0.5:
                one.held = False
                self.history.releases.append((self._now, one.id))

    def _take(self) -> Waiting | None:
        """Return what is next of what the line sees: the head, then the oldest, and what was set aside in turn."""
        seen = [one for one in self.history.deliveries if self._may_go(one)]
        if self._head in seen:
            return self._head
        self._head = None
        fresh = sorted((one for one in seen if one.due_at is None), key=lambda one: one.id)
        aside = sorted((one for one in seen if one.due_at is not None), key=lambda one: (one.due_at, one.id))
        first, second = (aside, fresh) if self._aside_next else (fresh, aside)
        taken = next(iter(first or second), None)
        self._aside_next = bool(taken and taken.due_at is None)
        return taken

    def _may_go(self, one: Waiting) -> bool:
        is_active = not self._inactive & {None, one.subscription_id}
        is_due = one.due_at is None or one.due_at <= self._now
        return is_active and is_due and not one.held and one.status == "PENDING" and one.committed_at <= self._now

    def _send(self, one: Waiting) -> None:
        """Run its script, send it, and record what came of that."""
        what = (
            "200"
            if self._calm
            else self._random.choice(["200"] * 6 + ["404", "500", "503", "down", "dead", "lost", "held"])
        )
        if what == "held":
            one.held = True
        elif what == "lost":
            self._set_aside(one)
        elif what == "down" and one.sequence is None:
            self._record(one, None)  # it was never sent, and has no number
            self._head = one
        else:
            self._number(one)
            self._answered(one, what)

    def _number(self, one: Waiting) -> None:
        if one.sequence is None:
            self._numbers += 1
            one.sequence = self._numbers

    def _answered(self, one: Waiting, what: str) -> None:
        match what:
            case "dead":  # the worker: nothing is recorded
                one.uncertain, self._head = True, one
                self._now += 20.0
            case "down" | "503":
                self._record(one, 503 if what == "503" else None)
                self._head = one
            case "500":
                self._record(one, 500)
                self._set_aside(one)
            case _:
                self._record(one, int(what))
                one.status, one.finished_at = {"200": "DELIVERED", "404": "REJECTED"}[what], self._now

    def _set_aside(self, one: Waiting) -> None:
        one.times_set_aside += 1
        one.due_at = self._now + self._random.choice([1.0, 4.0])

    def _record(self, one: Waiting, status: int | None) -> None:
        one.attempts += 1
        whose = {"delivery_id": one.id, "message_id": one.message_id, "kind": "TOPIC"}
        attempt = {"id": one.id * 1000 + one.attempts, "number": one.attempts, **whose}
        told = {"status_code": status, "failed": status != 200, "holds": status in (None, 503)}
        self.history.attempts.append({**attempt, "started_at": _moment(self._now), **told})
        self._now += self._random.choice(self._took)
