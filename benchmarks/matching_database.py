"""A process that measures publishing to event types with few and many filtered subscriptions, on one database."""

import json
import time
from collections.abc import Sequence
from typing import Final

import django
from django.core.management import call_command
from django.db import connection

django.setup()  # before any model is imported

from benchmarks.databases import SUBSCRIPTION_FIELDS, serve_commands
from delivery.callbacks.address import callback_terms
from delivery.publish.publish import publish
from delivery.publish.store import NewMessage
from subscriptions.models import EventType, Subscriber, Subscription

WANTED: Final = "wanted"
PATH: Final = "$$->'Body'->'customer'->>'id'"
BODY: Final = json.dumps({"customer": {"id": WANTED}, "padding": "x" * 950}).encode()


class MatchingDatabase:
    """A database with event types named for the kind and the number of their subscriptions."""

    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self._event_types: dict[str, EventType] = {}

    def subscribe(self, kind: str, count: int, matching: int) -> None:
        """Create an event type with `count` subscriptions, each with its own subscriber; some of them match."""
        event_type = EventType.objects.create(name=f"{kind}.{count}", kind="TOPIC")
        self._event_types[event_type.name] = event_type
        subscribers = Subscriber.objects.bulk_create(Subscriber(name=f"{event_type.name}-{n}") for n in range(count))
        Subscription.objects.bulk_create(
            Subscription(
                subscriber=subscriber,
                event_type=event_type,
                **SUBSCRIPTION_FIELDS,
                **_filtered(kind, WANTED if number < matching else f"customer-{number}"),
            )
            for number, subscriber in enumerate(subscribers)
        )

    def settle_down(self) -> None:
        """Vacuum and analyze, as autovacuum would after a while."""
        with connection.cursor() as cursor:
            cursor.execute("VACUUM (ANALYZE) subscriptions_subscription, subscriptions_subscriber, delivery_line")

    def publish(self, names: Sequence[str]) -> dict[str, float]:
        """Publish one message to each of the event types; return the seconds of each."""
        return {name: self._publish(self._event_types[name]) for name in names}

    def _publish(self, event_type: EventType) -> float:
        message = NewMessage(
            event_type_id=event_type.pk,
            event_type=event_type.name,
            body=BODY,
            content_type="application/json",
            filter_string=WANTED,
        )
        began = time.perf_counter()
        publish([message], publisher_id=None, key_hours=1, senders=5, callbacks=callback_terms())
        return time.perf_counter() - began


def _filtered(kind: str, value: str) -> dict[str, str]:
    return {"header_filter_string": value} if kind == "header" else {"filter": f"{PATH} = '{value}'"}


if __name__ == "__main__":
    serve_commands(MatchingDatabase())
