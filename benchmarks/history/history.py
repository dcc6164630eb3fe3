"""Who takes part in a history: publishers, and receivers that want everything."""

import datetime as dt
from typing import Any, Final

from delivery.models import Delivery, Lane, Line, LineEvent, LineEventKind
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
