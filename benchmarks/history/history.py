"""Who takes part in a history: publishers, and receivers that want everything."""

import datetime as dt
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from django.db import connection, transaction

from benchmarks.history import statements
from delivery.maintenance.partitions import open_days
from delivery.models import Delivery, Lane, Line, LineEvent, LineEventKind, MessageOutcome
from delivery.statuses import FINAL, UNFINISHED, DeliveryStatus
from subscriptions.models import (
    DeliveryMode,
    EventKind,
    EventType,
    Processing,
    Publisher,
    Status,
    StatusChange,
    Subscriber,
    Subscription,
)

SECRET: Final = "whsec_" + "A" * 43 + "="
TOPICS: Final = 3
SENDERS: Final = 5

HOUR: Final = dt.timedelta(hours=1)
MILLISECOND: Final = dt.timedelta(milliseconds=1)

ERRORS: Final = (
    'Could not resolve host: "quoted", it\'s',
    "Operation timed out after 10000 milliseconds with 0 bytes received",
    "Failed to connect to 127.0.0.1 port 9 after 0 ms: Could not connect to server",
    "TLS connect error: unexpected eof",
    "Empty reply from server\nand a second line,\r\nand a third",
    "\\N",
    "\\.",
    "\u0001 \\0 \u0085 \U0001f600 ü",
)
"""One of each kind, and what breaks a careless reader of CSV."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How lives of TOPIC deliveries go, and of how many in a thousand."""

    status: DeliveryStatus
    attempts: int
    failing: int
    last: int
    weight: int


KNOWN: Final = (
    Ending(DeliveryStatus.DELIVERED, 2, 500, 200, 40),
    Ending(DeliveryStatus.DELIVERED, 3, 502, 201, 30),
    Ending(DeliveryStatus.REJECTED, 1, 500, 404, 20),
    Ending(DeliveryStatus.NOT_SUPPORTED, 1, 500, 301, 10),
    Ending(DeliveryStatus.FAILED, 4, 500, 599, 10),
    Ending(DeliveryStatus.EXPIRED, 2, 500, 500, 5),
    Ending(DeliveryStatus.CANCELLED, 0, 500, 500, 5),
    Ending(DeliveryStatus.CANCELLED, 1, 500, 500, 5),
    Ending(DeliveryStatus.PENDING, 0, 500, 500, 3),
    Ending(DeliveryStatus.PENDING, 1, 500, 500, 2),
    Ending(DeliveryStatus.IN_FLIGHT, 1, 500, 500, 1),
    Ending(DeliveryStatus.HELD, 0, 500, 500, 3),
)
NAMED: Final = {ending.status for ending in KNOWN} | {DeliveryStatus.REDUNDANT}
OTHERS: Final = tuple(Ending(status, 1, 500, 500, 5) for status in DeliveryStatus if status not in NAMED)
"""Attempts with any other status."""
MOST: Final = Ending(DeliveryStatus.DELIVERED, 1, 500, 200, 1000 - sum(ending.weight for ending in KNOWN + OTHERS))
ENDINGS: Final = (MOST, *KNOWN, *OTHERS)


def participants(count: int) -> tuple[dict[str, Any], Subscription]:
    """Create who publishes and who receives; return how statements know them, and a subscription that is to go."""
    publishers = [Publisher.objects.create(name=f"History.{number}") for number in range(2)]
    topics = [EventType.objects.create(name=f"History.Topic{number}") for number in range(TOPICS)]
    queue, sync = (
        EventType.objects.create(name=f"History.{kind}", kind=kind) for kind in (EventKind.QUEUE, EventKind.SYNC)
    )
    receivers = [Subscriber.objects.create(name=f"history-{number}") for number in range(count)]
    leaving = _subscription(receivers[-1], sync)
    wishes = [wish for number, one in enumerate(receivers) for wish in _wishes(number, one, topics, count // 2)]
    senders = [Line.objects.get_or_create(lane=Lane.QUEUE, sender=number)[0].pk for number in range(SENDERS)]
    named = zip(("receivers", "types", "subscriptions", "lines"), map(list, zip(*wishes, strict=True)), strict=True)
    return {
        **dict(named),
        "publishers": [one.pk for one in publishers],
        "pairs": count // 2,
        "topic_types": [one.pk for one in topics],
        "queue_type": queue.pk,
        "sync_type": sync.pk,
        "senders": senders,
        "queue_subscriptions": [_subscription(one, queue).pk for one in receivers],
        "sync_subscriptions": [_subscription(receivers[0], sync).pk, leaving.pk],
        **_later(),
        **_mailbox(),
    }, leaving


def _later() -> dict[str, Any]:
    """Return who is sent to late and again, with two subscriptions and both lines, and who in no order."""
    late = Subscriber.objects.create(name="history-late")
    unordered = Subscriber.objects.create(name="history-unordered", processing=Processing.CONCURRENT)
    wishes = [_subscription(one, None, event_pattern="History.*").pk for one in (late, late, unordered)]
    lines = [(late, Lane.MAIN), (late, Lane.RETRY), (unordered, Lane.MAIN)]
    return {"later_subscriptions": wishes, "later_lines": [one.lines.get(lane=lane).pk for one, lane in lines]}


def _mailbox() -> dict[str, Any]:
    """Return who fetches."""
    fetching = Subscriber.objects.create(name="history-mailbox")
    everything = _subscription(fetching, None, event_pattern="History.*", delivery_mode=DeliveryMode.PULL)
    return {"mailbox_subscription": everything.pk, "mailbox_line": fetching.lines.get(lane=Lane.MAIN).pk}


def _wishes(number: int, one: Subscriber, topics: list[EventType], pairs: int) -> list[tuple[int, int, int, int]]:
    """Return a receiver's subscription for each TOPIC type: of the second half it is always the same, by pattern."""
    line = one.lines.get(lane=Lane.MAIN).pk
    if number < pairs:
        return [(number, topic.pk, _subscription(one, topic).pk, line) for topic in topics]
    by_pattern = _subscription(one, None, event_pattern="History.*").pk
    return [(number, topic.pk, by_pattern, line) for topic in topics]


def _subscription(subscriber: Subscriber, event_type: EventType | None, **fields: Any) -> Subscription:
    return Subscription.objects.create(
        subscriber=subscriber,
        event_type=event_type,
        endpoint=f"PATCH:http://127.0.0.1:9/{subscriber.name}?token=secret",
        status=Status.INACTIVE,
        signing_secret=SECRET,
        **fields,
    )


def switch(at: dt.datetime) -> None:
    """Let two have been inactive for a minute, a subscription and a whole subscriber, and a delivery been released."""
    one, other = Subscription.objects.order_by("pk")[:2]
    for subscriber_id, subscription_id in ((one.subscriber_id, one.pk), (other.subscriber_id, None)):
        for status, when in ((Status.INACTIVE, at), (Status.ACTIVE, at + dt.timedelta(minutes=1))):
            StatusChange.objects.create(
                subscriber_id=subscriber_id, subscription_id=subscription_id, status=status, at=when
            )
    held = Delivery.objects.final().filter(line__lane=Lane.MAIN).oldest_first()[0]
    LineEvent.objects.create(
        line=Line.objects.get(delivery=held), kind=LineEventKind.RELEASED, delivery_id=held.pk, at=held.created_at
    )


HIGHS: Final = list(accumulate(ending.weight for ending in ENDINGS))
WORDS: Final[dict[str, Any]] = {
    "statuses": [ending.status.value for ending in ENDINGS],
    "planned": [ending.attempts for ending in ENDINGS],
    "failing": [ending.failing for ending in ENDINGS],
    "lasts": [ending.last for ending in ENDINGS],
    "lows": [0, *HIGHS[:-1]],
    "highs": HIGHS,
    "final": [status.value for status in FINAL],
    "unfinished": [status.value for status in UNFINISHED],
    "astray": [outcome.value for outcome in MessageOutcome if outcome != MessageOutcome.ROUTED],
    "errors": list(ERRORS),
}


@dataclass(frozen=True, slots=True)
class History:
    """How much has happened, and until when."""

    until: dt.datetime
    messages: int = 100_000
    """With about twice as many deliveries and attempts."""
    days: int = 3
    """Of which the last one is that of `until`."""
    subscribers: int = 20
    """Even."""
    seed: int = 1

    @property
    def hours(self) -> list[dt.datetime]:
        """The beginnings of its hours."""
        start = dt.datetime.combine(self.until.date() - dt.timedelta(days=self.days - 1), dt.time(), dt.UTC)
        return [start + number * HOUR for number in range((self.until - start) // HOUR + 1)]

    def write(self) -> None:
        """Write it into the database, an hour a transaction; there must be nothing else of this kind in it yet."""
        for day in sorted({hour.date() for hour in self.hours}):
            open_days(day, ahead=1)
        arguments, leaving = participants(self.subscribers)
        per_hour = max(10, self.messages // len(self.hours) // 10 * 10)
        step = HOUR // per_hour // MILLISECOND * MILLISECOND
        arguments |= WORDS | {"until": self.until, "per_hour": per_hour, "step": step}
        with connection.cursor() as cursor:
            cursor.execute(statements.FUNCTIONS.format(seed=self.seed))
            for number, hour in enumerate(self.hours):
                with transaction.atomic():
                    for statement in (*statements.AN_HOUR, *statements.AN_HOUR_OF_ROWS):
                        cursor.execute(statement, {**arguments, "hour": hour, "first": number * per_hour})
        leaving.delete()
        switch(self.hours[-1])
