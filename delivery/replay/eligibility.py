"""Which deliveries can be sent again, and which a replay selects (contract 5.8)."""

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from django.utils.dateparse import parse_datetime

from delivery.statuses import DEAD, UNFINISHED, DeliveryStatus
from subscriptions.models import Subscription

RESUBMITTABLE: Final = DEAD - {DeliveryStatus.CANCELLED}
"""No endpoint took it, and no person ended it."""

RESUBMITTABLE_REPLIES: Final = DEAD
"""The status of a reply to a callback that can be resubmitted: a cancelled one too, which no replay sends again."""

REPLAYABLE: Final = DEAD | {DeliveryStatus.DELIVERED}
"""Not REDUNDANT ones, which another endpoint took."""

ASYNCHRONOUS: Final = frozenset({"TOPIC", "QUEUE"})


class NotBegun(Exception):
    """A backfill cannot start; the text says why."""


class NotNew(NotBegun):
    """The subscription has been sent something: what it missed since is not before it."""


class NotInactive(NotBegun):
    """The subscription is ACTIVE already, or its subscriber is not."""


class StillPaused(NotBegun):
    """The subscription is paused by hand, and a backfill would end that."""


class NotBackfilled(NotBegun):
    """Only subscriptions to TOPIC event types can be backfilled."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What decides whether a delivery can be sent again."""

    status: DeliveryStatus
    kind: str | None
    """Kind of its subscription's event type; None if that has been deleted."""
    is_reply: bool = False
    """Whether it is the reply to a callback, which has no subscription."""
    is_last: bool = True
    """Whether it is the last delivery of a reply whose callback is kept."""
    is_active: bool = True
    """Whether its subscription and subscriber are ACTIVE."""
    is_group_open: bool = False
    """Whether its QUEUE group is unfinished."""
    is_taken: bool = False
    """Whether another delivery of its QUEUE group was DELIVERED."""


def resubmit_refusal(sent: Sent) -> str | None:
    """Return why a delivery cannot be resubmitted and what to do instead, None if it can."""
    if sent.is_reply:
        return _reply_refusal(sent)
    if sent.kind is None:
        return "Its subscription has been deleted."
    if sent.kind not in ASYNCHRONOUS:
        return "It was a synchronous request, whose publisher has had the answer. Publish it again."
    return _status_refusal(sent)


def _reply_refusal(sent: Sent) -> str | None:
    if sent.status in UNFINISHED:
        return f"It is {sent.status}, and will be sent."
    if sent.status not in RESUBMITTABLE_REPLIES:
        return "Its publisher's address has taken this reply to a callback, which it gets once."
    return None if sent.is_last else "It was resubmitted already, or its callback is no longer kept."


def _status_refusal(sent: Sent) -> str | None:
    if sent.status == DeliveryStatus.HELD:
        return "It is HELD: release it instead."
    if sent.status in UNFINISHED:
        return f"It is {sent.status}, and will be sent. Wait for that, or cancel all that its subscription has waiting."
    if sent.status not in RESUBMITTABLE:
        return f"It is {sent.status}: a replay sends it again." if sent.status in REPLAYABLE else _OF_ANOTHER
    if sent.is_group_open:
        return "Others of its group are still to be asked; wait until one has taken the message or none has."
    if sent.is_taken:
        return _OF_ANOTHER
    return None if sent.is_active else "Its subscription or subscriber is INACTIVE: activate that first."


_OF_ANOTHER: Final = "Another endpoint of its group took the message."


MAX_PACE: Final = 100_000
"""New deliveries a second."""

EVER: Final = (dt.datetime(1, 1, 3, tzinfo=dt.UTC), dt.datetime(9999, 12, 30, tzinfo=dt.UTC))
BEFORE: Final = dt.timedelta(days=1)
"""A delivery may be filed under the day before it ended, after a clock was set."""


class NothingToReplay(Exception):
    """None of the subscriptions can be replayed."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The deliveries of a replay, by ids."""

    subscriber_id: int
    subscription_ids: Sequence[int]
    statuses: Sequence[str]
    event_type_id: int | None = None
    begin: dt.datetime | None = None
    """Created then or later."""
    end: dt.datetime | None = None
    """Created before."""

    @classmethod
    def among(
        cls,
        subscriptions: Iterable[Subscription],
        *,
        statuses: Iterable[str] = (),
        event_type_id: int | None = None,
        begin: dt.datetime | None = None,
        end: dt.datetime | None = None,
    ) -> Self:
        """Select deliveries of a subscriber's subscriptions, by default with the statuses that can be resubmitted.

        Raises `NothingToReplay` if there are no subscriptions, or only SYNC ones.
        """
        its = [one for one in subscriptions if one.kind in ASYNCHRONOUS]
        if not its:
            raise NothingToReplay(
                "It is sent nothing that could be sent again: SYNC events are answered once, at the call."
            )
        chosen = sorted({*statuses} or RESUBMITTABLE)
        return cls(its[0].subscriber_id, sorted(one.pk for one in its), chosen, event_type_id, begin, end)

    def kept(self) -> dict[str, Any]:
        """Return the JSON object that is stored."""
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
        """Return the selection of a stored JSON object."""
        begin, end = (parse_datetime(kept[name]) if kept[name] else None for name in ("from", "to"))
        return cls(kept["subscriber"], kept["subscriptions"], kept["statuses"], kept["event_type"], begin, end)

    @property
    def has_delivered(self) -> bool:
        """Whether it includes DELIVERED ones."""
        return DeliveryStatus.DELIVERED in self.statuses

    def arguments(self) -> dict[str, Any]:
        """Return the parameters of the statements."""
        begin = max(self.begin or EVER[0], EVER[0])
        return {
            "subscriptions": [*self.subscription_ids],
            "statuses": [*self.statuses],
            "event_type": self.event_type_id,
            "begin": begin,
            "end": self.end or EVER[1],
            "first_day": (begin.astimezone(dt.UTC) - BEFORE).date(),
        }
