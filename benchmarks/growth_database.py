"""A process that measures the broker's own functions on one database, and can fill it with a history."""

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import django
from django.core.management import call_command

django.setup()  # before any model is imported

from benchmarks import filling
from benchmarks.databases import SUBSCRIPTION_FIELDS, serve_commands
from delivery.callbacks.address import callback_terms
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import lines_with_due_work, still_due
from delivery.mailbox.acknowledge import acknowledge
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.receipts import MailboxRef
from delivery.maintenance.partitions import open_days, today
from delivery.models import Lane
from delivery.publish.publish import publish
from delivery.publish.store import NewMessage
from delivery.statuses import DeliveryStatus
from delivery.webhook.parts import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.line import ActiveLine
from delivery.worker.pages import PageRequest, read_pages
from delivery.worker.settle import settle
from delivery.worker.steps import Settlement, Turn
from subscriptions.models import DeliveryMode, EventType, Status, Subscriber, Subscription

LINES: Final = 100
PER_LINE: Final = 2
"""Deliveries to each line in a round."""
PARKED: Final = 2
"""Inactive subscriptions: few, with a long backlog each, because a sweep looks once at each with a backlog."""
FETCHED: Final = 10
"""Messages fetched and acknowledged in a round."""
DAYS: Final = 10


class GrowthDatabase:
    """A database with lines of busy subscribers, some with an inactive subscription too, and a mailbox."""

    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self._event_type = EventType.objects.create(name="Growth", kind="TOPIC")
        parked = EventType.objects.create(name="Growth.Parked", kind="TOPIC")
        self._busy: list[tuple[int, int]] = []
        self._parked: list[tuple[int, int]] = []
        for number in range(LINES + 1):
            subscriber = Subscriber.objects.create(name=f"growth-{number}")
            line_id = subscriber.lines.get(lane=Lane.MAIN).pk
            if number:
                busy = _subscribe(subscriber, self._event_type, Status.ACTIVE)
                self._busy.append((line_id, busy.pk))
            if number < PARKED:
                self._parked.append((line_id, _subscribe(subscriber, parked, Status.INACTIVE).pk))
        self._lines = [line_id for line_id, _ in self._busy]
        self._fetched = EventType.objects.create(name="Growth.Fetched", kind="TOPIC")
        client = Subscriber.objects.create(name="growth-client")
        _subscribe(client, self._fetched, Status.ACTIVE, delivery_mode=DeliveryMode.PULL)
        self._box = MailboxRef(client.pk, is_ordered=False)

    def fill(self, url: str, finished: int, waiting: int) -> None:
        """Store finished and waiting deliveries."""
        days = [today() - dt.timedelta(days=number) for number in range(DAYS, 0, -1)]
        for day in days:
            open_days(day, ahead=0)
        filling.finish(url, self._busy, self._event_type.pk, count=finished, days=days)
        filling.store_open(filling.WAITING, url, self._parked, self._event_type.pk, count=waiting, day=days[0])
        filling.settle_down(url)

    def round(self) -> dict[str, float]:
        """Publish, sweep, claim, read, settle, release; fetch, acknowledge; return the seconds of each."""
        seconds: defaultdict[str, float] = defaultdict(float)

        def timed(kind: str, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = act(*arguments, **named)
            seconds[kind] += time.perf_counter() - began
            return result

        timed("publish", _publish, self._event_type, PER_LINE)
        timed("sweep", lines_with_due_work)
        claims = timed("claim", claim, self._lines, worker="growth")
        wanted = [PageRequest(one.line_id, one.epoch, one.head_id, one.capacity) for one in claims]
        hands = timed("read a page", read_pages, wanted, BodyBudget(2**30))
        lines = [ActiveLine(one, Turn([one.line_id for one in claims], 1.0), 0.0) for one in claims]
        _send(lines, hands, partial(timed, "settle", settle))
        timed("look again", still_due, self._lines)
        _publish(self._fetched, FETCHED)
        handed_out = timed("fetch", fetch, self._box, max_messages=FETCHED)
        timed("acknowledge", acknowledge, self._box.subscriber_id, [one.receipt for one in handed_out])
        return dict(seconds)


def _publish(event_type: EventType, count: int) -> None:
    messages = [
        NewMessage(event_type_id=event_type.pk, event_type=event_type.name, body=b"{}", content_type="application/json")
    ] * count
    publish(messages, publisher_id=None, key_hours=1, senders=5, callbacks=callback_terms())


def _send(lines: list[ActiveLine], hands: dict[int, Buffer[Outgoing]], settle: Callable[..., Any]) -> None:
    """Settle as if every endpoint answered at once, and release the lines."""
    epochs, ended = {line.id: line.claim.epoch for line in lines}, list[Settlement]()
    for _ in range(PER_LINE):
        going = [(line, hands[line.id].take(deferred_next=False)) for line in lines]
        settle(epochs, settlements=ended, marks=[line.mark(delivery) for line, delivery in going if delivery])
        for line, _ in going:
            line.last_sequence += 1
        ended = [_answered(line.id, delivery.id) for line, delivery in going if delivery]
    settle(epochs, settlements=ended, states=[line.update(let_go=True) for line in lines])


def _subscribe(subscriber: Subscriber, event_type: EventType, status: Status, **fields: Any) -> Subscription:
    terms = {"subscriber": subscriber, "event_type": event_type, "status": status}
    return Subscription.objects.create(**SUBSCRIPTION_FIELDS, **terms, **fields)


def _answered(line_id: int, delivery_id: int) -> Settlement:
    return Settlement(
        line_id=line_id,
        delivery_id=delivery_id,
        status=DeliveryStatus.DELIVERED,
        pause=None,
        uncertain=False,
        sequence_unused=False,
        reason="",
        started_at=dt.datetime.now(dt.UTC),
        duration_ms=3,
        status_code=200,
        answer_headers=b"HTTP/1.1 200 OK",
        answer_excerpt=b"",
    )


if __name__ == "__main__":
    serve_commands(GrowthDatabase())
