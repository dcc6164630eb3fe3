"""What a broker leaves behind of one subscriber on one day, and what was published on it."""

import datetime as dt
from dataclasses import dataclass, field
from random import Random
from typing import Final

from tests.frames import DAY, Row

LONGEST_PUBLISH: Final = 1.9
KEPT: Final = (
    *("id", "message_id", "subscription_id", "status", "attempts", "fetches", "times_set_aside", "sequence"),
    *("uncertain", "resubmit_of", "replay_id"),
)
TIMES: Final = ("created_at", "finished_at", "not_before")


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

    def _row(self, one: Waiting) -> dict[str, object]:
        times = {name: getattr(one, name) for name in TIMES}
        return (
            {name: getattr(one, name) for name in KEPT}
            | {name: moment(at) for name, at in times.items() if at is not None}
            | {"kind": "MAILBOX" if one.fetches else "TOPIC"}
        )


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


def moment(seconds: float) -> dt.datetime:
    """Return an instant of the day."""
    return DAY + dt.timedelta(seconds=seconds)
