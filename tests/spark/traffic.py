"""A small history: what was published on one day of the past, and what became of it, as rows of the broker's tables."""

import datetime as dt
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from delivery.maintenance import partitions
from delivery.models import Attempt, Delivery, Lane, Line, Message, MessageOutcome
from delivery.statuses import DeliveryStatus
from subscriptions.models import Publisher, Subscription
from tests import factories

DAY: Final = dt.date(2026, 3, 2)
MORNING: Final = dt.datetime(2026, 3, 2, 7, 15, tzinfo=dt.UTC)
"""In the middle of an hour, and far from another day."""
SECOND: Final = dt.timedelta(seconds=1)


@dataclass
class Traffic:
    """One publisher, one subscription, and what went from the one to the other."""

    publisher: Publisher = field(default_factory=factories.publisher)
    subscription: Subscription = field(default_factory=factories.subscription)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        partitions.open_days(DAY, ahead=1)
        self.line, _ = Line.objects.get_or_create(subscriber=self.subscription.subscriber, lane=Lane.MAIN)

    def delivered(self, at: dt.datetime = MORNING, *, answers: tuple[int, ...] = (200,)) -> Delivery:
        """Store a message published at an instant, and its attempts, a second apart; the last answer ends it."""
        number = partitions.first_id(at.date()) + next(self._numbers)
        message = self._message(number, at)
        status = DeliveryStatus.DELIVERED if answers[-1] == 200 else DeliveryStatus.REJECTED
        ended = at + SECOND * len(answers)
        delivery = Delivery.objects.create(
            id=number,
            message=message,
            line=self.line,
            subscription=self.subscription,
            status=status,
            size=message.size,
            attempts=len(answers),
            sequence=number,
            created_at=at,
            finished_at=ended,
            closed_on=ended.date(),
        )
        for nth, answer in enumerate(answers):
            self._attempt(delivery, nth, answer, at + SECOND * nth)
        return delivery

    def _message(self, number: int, at: dt.datetime) -> Message:
        return Message.objects.create(
            id=number,
            event_type=self.subscription.event_type,
            publisher=self.publisher,
            body=b"{}",
            size=2,
            content_type="application/json",
            outcome=MessageOutcome.ROUTED,
            deliveries_count=1,
            published_at=at,
        )

    def _attempt(self, delivery: Delivery, nth: int, answer: int, at: dt.datetime) -> None:
        Attempt.objects.create(
            id=partitions.first_id(at.date()) + next(self._numbers),
            delivery=delivery,
            number=nth + 1,
            started_at=at,
            duration_ms=20,
            status_code=answer,
        )


def empty_day() -> None:
    """Take away all that has been delivered."""
    for model in (Attempt, Delivery, Message):
        model.objects.all().delete()
