"""Which deliveries a replay is of, as it is asked for and as it is stored (contract 5.8)."""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from django.utils.dateparse import parse_datetime

from delivery.replay.eligibility import ASYNCHRONOUS, RESUBMITTABLE
from delivery.statuses import DeliveryStatus

MAX_PACE: Final = 100_000
"""New deliveries a second that one may ask for at most."""

EVER: Final = (dt.datetime(1, 1, 3, tzinfo=dt.UTC), dt.datetime(9999, 12, 30, tzinfo=dt.UTC))
BEFORE: Final = dt.timedelta(days=1)
"""What ended then may be filed under the day before, by a clock that has been set."""


class NothingToReplay(Exception):
    """None of the subscriptions is sent anything that could be sent again."""


class Subscribed(Protocol):
    """A subscription, by what a replay needs to know of it."""

    pk: int
    subscriber_id: int
    kind: str


@dataclass(frozen=True, slots=True)
class Selection:
    """What a replay is of, resolved to ids."""

    subscriber_id: int
    subscription_ids: Sequence[int]
    statuses: Sequence[str]
    event_type_id: int | None = None
    begin: dt.datetime | None = None
    """Made then or later."""
    end: dt.datetime | None = None
    """Made before."""

    @classmethod
    def among(
        cls,
        subscriptions: Iterable[Subscribed],
        *,
        statuses: Iterable[str] = (),
        event_type_id: int | None = None,
        begin: dt.datetime | None = None,
        end: dt.datetime | None = None,
    ) -> Self:
        """Select among the deliveries of a subscriber's subscriptions; of which status, if not what can be resubmitted.

        Raises:
            NothingToReplay: there are none, or SYNC ones alone.

        """
        its = [one for one in subscriptions if one.kind in ASYNCHRONOUS]
        if not its:
            raise NothingToReplay("It is sent nothing that could be sent again; SYNC answers whoever waits, once.")
        chosen = sorted({*statuses} or RESUBMITTABLE)
        return cls(its[0].subscriber_id, sorted(one.pk for one in its), chosen, event_type_id, begin, end)

    def kept(self) -> dict[str, Any]:
        """Return it as it is stored."""
        return {
            "subscriber": self.subscriber_id,
            "subscriptions": [*self.subscription_ids],
            "statuses": [*self.statuses],
            "event_type": self.event_type_id,
            "from": self.begin and self.begin.isoformat(),
            "to": self.end and self.end.isoformat(),
        }

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Self:
        """Return what was stored."""
        begin, end = (parse_datetime(kept[name]) if kept[name] else None for name in ("from", "to"))
        return cls(kept["subscriber"], kept["subscriptions"], kept["statuses"], kept["event_type"], begin, end)

    @property
    def has_delivered(self) -> bool:
        """Whether it is of DELIVERED ones, too."""
        return DeliveryStatus.DELIVERED in self.statuses

    def arguments(self, until: dt.datetime) -> dict[str, Any]:
        """Return what the statements ask by."""
        begin = self.begin or EVER[0]
        return {
            "subscriptions": [*self.subscription_ids],
            "statuses": [*self.statuses],
            "event_type": self.event_type_id,
            "begin": begin,
            "end": self.end or EVER[1],
            "until": until,
            "first_day": (begin.astimezone(dt.UTC) - BEFORE).date(),
        }
