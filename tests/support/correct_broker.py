"""A broker in a few lines that keeps the contract, and the history it leaves for the audit."""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.support.spark_frames import DAY, Row

MAX_PUBLISH_SECONDS: Final = 1.9
KEPT: Final = (
    *("id", "message_id", "subscription_id", "status", "attempts", "fetches", "times_deferred", "sequence"),
    *("uncertain", "resubmit_of", "replay_id", "ordering_key"),
)
TIMES: Final = ("created_at", "finished_at", "not_before")

MAX_TURNS: Final = 400
"""Steps of a line after which the day ends."""
APART: Final = 100
"""Between the ids of two publishes: what is made in between by other means has its own there."""
MAX_ATTEMPTS: Final = 3

KEYS: Final = ("", "a", "b")

Policy = Mapping[str, str | None]
"""What is recorded of each failure."""

FAILURES: Final = ("404", "500", "503", "down")
TEAMFORGE: Final[Policy] = dict.fromkeys(FAILURES)
"""Nothing is recorded beside the answer."""
WORKFRONT: Final[Policy] = dict.fromkeys(FAILURES, "retry_lane")
OWN: Final[Policy] = {"404": "end", "500": "deferred", "503": "suspend", "down": "deferred"}
HOLDING: Final = {"503", "down"}


@dataclass(frozen=True, slots=True)
class PublishedMessage:
    """A message, and when its publish began and was committed."""

    message_id: int
    created_at: float
    committed_at: float


@dataclass(slots=True)
class WaitingDelivery:
    """A delivery on its way."""

    id: int
    message_id: int
    subscription_id: int
    created_at: float
    committed_at: float
    ordering_key: str | None = None
    """Of what a KEYED subscriber gets; none of what ended while it was CONCURRENT."""
    held: bool = False
    not_before: float | None = None
    begins_at: float = 0.0
    """When it is let go, some time after it is due."""
    resubmit_of: int | None = None
    replay_id: int | None = None
    apart: bool = False
    due_at: float | None = None
    attempts: int = 0
    fetches: int = 0
    fetched_until: float | None = None
    times_deferred: int = 0
    sequence: int | None = None
    uncertain: bool = False
    status: str = "PENDING"
    finished_at: float | None = None


@dataclass(slots=True)
class History:
    """What happened to one subscriber on one day, as rows of silver; times as seconds since midnight."""

    subscriber_id: int
    deliveries: list[WaitingDelivery] = field(default_factory=list)
    attempts: list[Row] = field(default_factory=list)
    changes: list[tuple[float, int | None, str]] = field(default_factory=list)
    releases: list[tuple[float, int, str]] = field(default_factory=list)

    def rows(self) -> dict[str, list[Row]]:
        """Return the rows by table."""
        owner = {"subscriber_id": self.subscriber_id, "subscriber": f"S{self.subscriber_id}"}
        return {
            "deliveries": [
                self._row(one) | owner for one in self.deliveries if one.attempts or one.fetches or one.sequence
            ],
            "attempts": [{**row, **owner} for row in self.attempts],
            "status_changes": [
                {"subscriber_id": self.subscriber_id, "subscription_id": of, "at": moment(at), "status": status}
                for at, of, status in self.changes
            ],
            "releases": [{"delivery_id": one, "at": moment(at), "kind": kind} for at, one, kind in self.releases],
        }

    def _row(self, one: WaitingDelivery) -> dict[str, object]:
        times = {name: getattr(one, name) for name in TIMES}
        return (
            {name: getattr(one, name) for name in KEPT}
            | {name: moment(at) for name, at in times.items() if at is not None}
            | {"kind": "MAILBOX" if one.fetches else "TOPIC"}
        )


def publish_random_day(random: Random, first_id: int) -> list[PublishedMessage]:
    """Publish a day's messages, a few: ids in the order in which they are given out, somewhere within each publish."""
    publishes, at = [], 1.0
    for _ in range(random.randint(6, 16)):
        lasts = random.choice([0.005, 1.0, MAX_PUBLISH_SECONDS])
        publishes.append((at + random.random() * lasts, at, at + lasts))
        at += random.choice([0.0, 0.1, 1.0, 6.0, 60.0])
    return [PublishedMessage(number, *times) for number, (_, *times) in enumerate(sorted(publishes), first_id)]


def publish_steadily(count: int, first_id: int) -> list[PublishedMessage]:
    """Publish four messages a second, one after the other."""
    return [PublishedMessage(first_id + number, 1 + number / 4, 1.005 + number / 4) for number in range(count)]


def moment(seconds: float) -> dt.datetime:
    """Return an instant of the day."""
    return DAY + dt.timedelta(seconds=seconds)


class CorrectBroker:
    """One subscriber with three subscriptions, and its lines; others may be sent the same messages."""

    def __init__(
        self,
        subscriber_id: int,
        random: Random,
        publishes: Sequence[PublishedMessage],
        *,
        calm: bool = False,
        prompt: bool = False,
        keyed: bool = False,
    ) -> None:
        self.history = History(subscriber_id)
        self._random = random
        self._calm = calm
        """Whether everything is taken at once and nothing goes wrong."""
        self._idle, self._took = ([0.05], [0.01]) if prompt else ([0.5, 3.0, 30.0], [0.01, 0.5])
        """How long it may not look for something to send, and for an answer."""
        first = subscriber_id * 10
        other = TEAMFORGE if calm else random.choice([TEAMFORGE, WORKFRONT, OWN])
        self._policies: dict[int, Policy] = {first: TEAMFORGE, first + 1: other}
        self._new = first + 2
        """The subscription that gets a backfill."""
        self._inactive: set[int | None] = set()
        self._suspended: set[int] = set()
        self._fetched: set[int] = set()
        """The subscriptions that a client fetches from."""
        self._filled_at: float | None = None
        """When the backfill is done; until then what it is for is paused."""
        self._now, self._numbers = 0.0, 0
        self._keys: Sequence[str | None] = KEYS if keyed else (None,)
        self._heads: dict[str | None, WaitingDelivery] = {}
        self._in_order, self._deferred_next = True, False
        self._qualify(publishes)

    def day(self) -> History:
        """Let the day pass; return what happened."""
        for _ in range(MAX_TURNS):
            if not self._calm:
                self._whatever_happens()
            taken = self._take()
            if taken:
                self._send(taken)
            else:
                self._now += self._random.choice(self._idle)
        return self.history

    # --- what is there to be sent ------------------------------------------------------------------------

    def _qualify(self, publishes: Sequence[PublishedMessage]) -> None:
        begun = 0 if self._calm else self._random.randrange(2 * len(publishes))
        wanted = [*self._policies]
        for number, one in enumerate(publishes, 1):
            waiting = self._waiting(self._id(number), one, self._random.choice(wanted))
            waiting.held = self._happens(0.1)
            if self._happens(0.1):
                waiting.not_before = one.created_at + self._random.choice([1.0, 30.0, 100.0])
                waiting.begins_at = waiting.not_before + self._random.choice([0.0, 0.9, 50.0])
            if number == begun:
                self._backfill(publishes[:begun], one.committed_at, self._id(number) + APART // 2)
                wanted.append(self._new)

    def _backfill(self, publishes: Sequence[PublishedMessage], reserved_at: float, first_id: int) -> None:
        """Make what was published before the subscription; the ids are from when it was activated, and paused."""
        at = reserved_at + self._random.choice([0.1, 20.0])
        for number, one in enumerate(publishes):
            made = PublishedMessage(one.message_id, at, at + 0.1)
            self._waiting(first_id + number, made, self._new).replay_id = 1
        self._filled_at = at + self._random.choice([0.2, 20.0])
        self.history.changes.append((reserved_at, self._new, "ACTIVE"))

    def _waiting(self, number: int, one: PublishedMessage, subscription: int) -> WaitingDelivery:
        times = one.created_at, one.committed_at
        waiting = WaitingDelivery(number, one.message_id, subscription, *times, self._random.choice(self._keys))
        self.history.deliveries.append(waiting)
        return waiting

    def _id(self, number: int) -> int:
        return self.history.subscriber_id * 100_000 + number * APART

    # --- what happens beside -----------------------------------------------------------------------------

    def _happens(self, chance: float) -> bool:
        return not self._calm and self._random.random() < chance

    def _whatever_happens(self) -> None:
        if self._filled_at and self._now >= self._filled_at:
            self._filled_at = None
            self.history.changes.append((self._now, self._new, "ACTIVE"))
        if self._happens(0.02):
            self._switch()
        self._fetch()
        if self._happens(0.2):
            self._release()
        if self._happens(0.02):
            self._resubmit()
        if self._happens(0.01):
            self._in_order = not self._in_order
            self._changed(None)

    def _switch(self) -> None:
        """Inactivate or activate, pause or resume a subscription, or the whole subscriber."""
        whose = self._random.choice([None, *self._policies])
        self._inactive ^= {whose}
        self._changed(whose)

    def _changed(self, whose: int | None) -> None:
        self.history.changes.append((self._now, whose, "INACTIVE" if whose in self._inactive else "ACTIVE"))

    def _switch_mode(self) -> None:
        """Let a client fetch what a subscription gets, or send it again; there is no endpoint left to be suspended."""
        whose = self._random.choice([*self._policies])
        self._fetched ^= {whose}
        self._suspended.discard(whose)
        self._changed(whose)

    def _fetch(self) -> None:
        """Let clients fetch what is there, and acknowledge what they have, give it back, or say nothing in time."""
        if self._happens(0.02):
            self._switch_mode()
        for one in self.history.deliveries:
            if one.fetched_until:
                self._answer(one)
            elif self._is_fetchable(one) and self._happens(0.3):
                one.status, one.fetched_until = "IN_FLIGHT", self._now + 30.0
                one.fetches, one.apart = one.fetches + 1, False

    def _answer(self, one: WaitingDelivery) -> None:
        if self._happens(0.05):
            one.status, one.fetched_until = "DELIVERED", None
            self._end(one)
        elif self._now >= (one.fetched_until or 0.0) or self._happens(0.05):
            one.uncertain |= one.subscription_id not in self._fetched
            one.status, one.due_at, one.fetched_until = "PENDING", None, None

    def _release(self) -> None:
        for one in self.history.deliveries:
            if one.held and one.committed_at <= self._now and self._random.random() < 0.5:
                one.held = False
                self.history.releases.append((self._now, one.id, "RELEASED"))

    def _resubmit(self) -> None:
        """Make one that has ended again, in a transaction that may take a while."""
        ended = [one for one in self.history.deliveries if one.finished_at]
        known = [one.id for one in self.history.deliveries if one.created_at <= self._now]
        if ended and (max(known) + 1) % APART:
            old = self._random.choice(ended)
            again = PublishedMessage(old.message_id, self._now, self._now + self._random.choice([0.01, 40.0]))
            self._waiting(max(known) + 1, again, old.subscription_id).resubmit_of = old.id

    # --- the lines ---------------------------------------------------------------------------------------

    def _take(self) -> WaitingDelivery | None:
        """Return what is next of what the lines see: the head, then the oldest, and what was set aside in turn.

        Of a KEYED subscriber that is what is next of some ordering key.
        """
        seen = [one for one in self.history.deliveries if self._is_sending(one) and self._is_there(one)]
        apart = [one for one in seen if one.apart]
        if apart and self._random.random() < 0.5:
            return self._random.choice(apart)
        seen = [one for one in seen if not one.apart]
        if not self._in_order:
            return self._random.choice(seen) if seen else None
        key = self._random.choice([one.ordering_key for one in seen] or self._keys)
        seen = [one for one in seen if one.ordering_key == key]
        if (head := self._heads.get(key)) in seen:
            return head
        self._heads.pop(key, None)
        fresh = sorted((one for one in seen if one.due_at is None), key=lambda one: one.id)
        aside = sorted((one for one in seen if one.due_at is not None), key=lambda one: (one.due_at, one.id))
        first, second = (aside, fresh) if self._deferred_next else (fresh, aside)
        taken = next(iter(first or second), None)
        self._deferred_next = bool(taken and taken.due_at is None)
        return taken

    def _is_there(self, one: WaitingDelivery) -> bool:
        is_due = max(one.due_at or 0.0, one.begins_at, one.committed_at) <= self._now
        return is_due and not one.held and one.status == "PENDING"

    def _is_sending(self, one: WaitingDelivery) -> bool:
        """Return whether its subscription is sent to; a suspended one sends its oldest delivery now and then."""
        is_filled = self._filled_at is not None and one.subscription_id == self._new
        if is_filled or {None, one.subscription_id} & (self._inactive | self._fetched):
            return False
        return one.subscription_id not in self._suspended or (not one.apart and self._is_tried(one))

    def _is_fetchable(self, one: WaitingDelivery) -> bool:
        is_active = not self._inactive & {None, one.subscription_id}
        return is_active and one.subscription_id in self._fetched and self._is_there(one)

    def _is_tried(self, one: WaitingDelivery) -> bool:
        its = (other for other in self.history.deliveries if other.subscription_id == one.subscription_id)
        oldest = next((other for other in its if other.status == "PENDING" and not other.held), None)
        return one is oldest and self._random.random() < 0.1

    def _send(self, one: WaitingDelivery) -> None:
        """Run its script, send it, and record what came of that."""
        choices = ["200"] * 6 + [*FAILURES, "dead", "lost", "held"]
        what = "200" if self._calm else self._random.choice(choices)
        meaning = self._meaning(one, what)
        if what == "held":
            one.held = True
        elif what == "lost":
            self._set_aside(one)
        elif what == "down" and one.sequence is None and meaning != "retry_lane":
            self._record(one, None, meaning)  # it was never sent, and has no number
            self._goes_on(one, what, meaning)
        else:
            self._number(one)
            self._answered(one, what, meaning)

    def _meaning(self, one: WaitingDelivery, what: str) -> str | None:
        policy = self._policies.get(one.subscription_id, TEAMFORGE)
        meaning = policy.get(what)
        if meaning in {"retry_lane", "deferred"} and one.attempts >= MAX_ATTEMPTS:
            return "end"
        return "retry_lane" if one.apart and what in FAILURES and meaning != "end" else meaning

    def _number(self, one: WaitingDelivery) -> None:
        if one.sequence is None and self._in_order and not one.apart:
            self._numbers += 1
            one.sequence = self._numbers

    def _answered(self, one: WaitingDelivery, what: str, meaning: str | None) -> None:
        if what == "dead":  # the worker: nothing is recorded
            one.uncertain = True
            if not one.apart:
                self._heads[one.ordering_key] = one
            self._now += 20.0
            return
        self._record(one, int(what) if what.isdigit() else None, meaning)
        self._goes_on(one, what, meaning)

    def _goes_on(self, one: WaitingDelivery, what: str, meaning: str | None) -> None:
        """Let follow from an answer what does: by what was recorded, or else as TeamForge takes it."""
        if one.subscription_id in self._suspended and meaning != "suspend":
            self._suspended.discard(one.subscription_id)
            self.history.releases.append((self._now, one.id, "RESUMED"))
            self.history.changes.append((self._now + 0.001, one.subscription_id, "ACTIVE"))
        if meaning == "suspend":
            self._suspend(one)
        elif meaning in {"retry_lane", "deferred"} or (meaning is None and what == "500"):
            one.apart = meaning == "retry_lane"
            self._set_aside(one)
        elif meaning is None and what in HOLDING:
            self._heads[one.ordering_key] = one
        else:
            one.status = {"200": "DELIVERED", "404": "REJECTED"}.get(what, "FAILED")
            self._end(one)

    def _end(self, one: WaitingDelivery) -> None:
        one.finished_at = self._now
        one.ordering_key = one.ordering_key if self._in_order else None

    def _suspend(self, one: WaitingDelivery) -> None:
        if one.subscription_id not in self._suspended:
            self._suspended.add(one.subscription_id)
            self.history.changes.append((self._now, one.subscription_id, "ACTIVE"))
        one.due_at = None

    def _set_aside(self, one: WaitingDelivery) -> None:
        one.times_deferred += 1
        one.due_at = self._now + self._random.choice([1.0, 4.0])

    def _record(self, one: WaitingDelivery, status: int | None, meaning: str | None) -> None:
        one.attempts += 1
        whose = {"delivery_id": one.id, "message_id": one.message_id, "kind": "TOPIC"}
        attempt = {"id": one.id * 1000 + one.attempts, "number": one.attempts, **whose}
        holds = status in (None, 503) if meaning is None else meaning == "hold"
        outcome = {"status_code": status, "meaning": meaning, "failed": status != 200, "holds": holds}
        self.history.attempts.append({**attempt, "started_at": moment(self._now), **outcome})
        self._now += self._random.choice(self._took)
