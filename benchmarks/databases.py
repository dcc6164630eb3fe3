"""What scenarios measure in processes of their own, each on one database: the broker's functions, and summaries.

`command_process.measured_database` makes a database with such a process, and calls these methods in it.
"""

import datetime as dt
import json
import logging
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psycopg
from django.contrib.admin import site
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connection, reset_queries
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString

from analytics import live_numbers
from analytics.pipeline.job import whole
from analytics.runs import job_of
from analytics.spark_process import run_application, spark_settings
from analytics.vocabulary import vocabulary
from benchmarks import filling, summaries_sql
from benchmarks.history import write_history
from broker_project.core.db import Connection, PreparedStatement, Rows, rows
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import due_lines
from delivery.mailbox.acknowledge import acknowledge
from delivery.mailbox.fetch_messages import fetch
from delivery.mailbox.receipts import MailboxRef
from delivery.maintenance.partitions import open_days, today
from delivery.models import Attempt, Delivery, Lane
from delivery.publish.publish import publish, publish_terms
from delivery.publish.store import NewMessage
from delivery.statuses import DeliveryStatus
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import BodyBudget, Buffer, PageRequest
from delivery.worker.line import ActiveLine
from delivery.worker.pages import PageReading
from delivery.worker.round_trip import Settling, mark_of
from delivery.worker.rounds import NO_LINK
from delivery.worker.slots import Settlement
from subscriptions.credentials.keys import issue
from subscriptions.credentials.portal_links import PORTAL_SCOPES, issue_link
from subscriptions.credentials.scopes import Issuer
from subscriptions.models import DeliveryMode, EventType, Status, Subscriber, Subscription

NOT_SENT: Final = {"endpoint": "http://127.0.0.1:9/", "signing_secret": "whsec_" + "A" * 43 + "="}
"""Fields of subscriptions to which nothing is sent."""

LINES: Final = 100
PER_LINE: Final = 2
"""Deliveries to each line in a round."""
PARKED: Final = 2
"""Inactive subscriptions: few, with a long backlog each, because a sweep looks once at each with a backlog."""
FETCHED: Final = 10
"""Messages fetched and acknowledged in a round."""
DAYS: Final = 10
OF_ADMIN: Final = (
    "delivery/delivery/{delivery}/change/",
    "delivery/message/{message}/change/",
    "delivery/delivery/?status__exact=REJECTED",
    "delivery/delivery/?from=7d&subscription__subscriber__id__exact={subscriber}",
    "delivery/deadletter/?subscription__subscriber__id__exact={subscriber}",
    "delivery/message/?event_type__id__exact={event_type}",
    "delivery/attempt/?answer=2",
    "subscriptions/subscriber/?q=pages-77",
    "analytics/run/live/?sort=-p95",
    "analytics/run/live/?subscriber={subscriber}",
    "find/?q=pages-77",
)
"""Pages of the admin site of what has ended, and lists that are narrowed or sorted."""
OF_API: Final = ("/api/v1/metrics", "/api/v1/deliveries", "/api/v1/messages", "/api/v1/dead-letters/counts")
OF_PORTAL: Final = (
    *("", "deliveries", "replays", "subscriptions/new", "subscriptions/{subscription}"),
    *("subscriptions/{subscription}/filter", "deliveries/{delivery}", "messages/{message}"),
)

WANTED: Final = "wanted"
PATH: Final = "$$->'Body'->'customer'->>'id'"
BODY: Final = json.dumps({"customer": {"id": WANTED}, "padding": "x" * 950}).encode()

MASTER: Final = "local[1]"
OBJECTIVE: Final = 0.999
MAX_MINUTES: Final = 60
DELIVERIES_PER_MESSAGE: Final = 2


def publish_copies(event_type: EventType, body: bytes, count: int = 1) -> None:
    """Publish a message several times in one call."""
    message = NewMessage(
        event_type_id=event_type.pk,
        event_type=event_type.name,
        body=body,
        content_type="application/json",
        filter_string=WANTED,
    )
    publish([message] * count, publish_terms())


class GrowthDatabase:
    """A database with lines of busy subscribers, some with an inactive subscription too, and a mailbox."""

    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self._event_type, parked, self._fetched = (
            EventType.objects.create(name=name, kind="TOPIC") for name in ("Growth", "Growth.Parked", "Growth.Fetched")
        )
        subscribers = [Subscriber.objects.create(name=f"growth-{number}") for number in range(LINES)]
        self._busy = [self._subscribe(subscriber, self._event_type) for subscriber in subscribers]
        self._parked = [self._subscribe(one, parked, status=Status.INACTIVE) for one in subscribers[:PARKED]]
        self._lines = [line_id for line_id, _ in self._busy]
        client = Subscriber.objects.create(name="growth-client")
        self._subscribe(client, self._fetched, delivery_mode=DeliveryMode.PULL)
        self._box = MailboxRef(client.pk, is_ordered=False)

    def _subscribe(self, subscriber: Subscriber, event_type: EventType, **fields: Any) -> tuple[int, int]:
        """Return the ids of the line and the subscription."""
        terms = {"status": Status.ACTIVE, **NOT_SENT, **fields}
        made = Subscription.objects.create(subscriber=subscriber, event_type=event_type, **terms)
        return subscriber.lines.get(lane=Lane.MAIN).pk, made.pk

    def fill(self, finished: int, waiting: int) -> None:
        """Store finished and waiting deliveries."""
        url = os.environ["DATABASE_URL"]
        days = [today() - dt.timedelta(days=number) for number in range(DAYS, 0, -1)]
        for day in days:
            open_days(day, ahead=0)
        filling.finish(url, self._busy, self._event_type.pk, count=finished, days=days)
        filling.store_open(url, self._parked, self._event_type.pk, count=waiting, day=days[0])
        filling.settle_down(url)

    def round(self) -> dict[str, float]:
        """Publish, sweep, claim, read, settle, release; fetch, acknowledge; return the seconds of each."""
        seconds: defaultdict[str, float] = defaultdict(float)

        def timed(kind: str, act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = act(*arguments, **named)
            seconds[kind] += time.perf_counter() - began
            return result

        timed("publish", publish_copies, self._event_type, b"{}", PER_LINE)
        timed("sweep", due_lines)
        claims = timed("claim", claim, self._lines, worker="growth")
        wanted = [PageRequest(one.line_id, one.epoch, one.capacity) for one in claims]
        hands = timed("read a page", _read_pages, wanted)
        lines = [ActiveLine(one, NO_LINK, 0.0) for one in claims]
        _send(lines, hands, partial(timed, "settle", _settle))
        publish_copies(self._fetched, b"{}", FETCHED)
        handed_out = timed("fetch", fetch, self._box, max_messages=FETCHED)
        timed("acknowledge", acknowledge, self._box.subscriber_id, [one.receipt for one in handed_out])
        return dict(seconds)


def _read_pages(wanted: list[PageRequest]) -> dict[int, Buffer[Outgoing]]:
    """Read pages in a statement of their own."""
    reading = PageReading(wanted, BodyBudget(2**30))
    return reading.buffers(rows(*reading.statement))


def _settle(epochs: Mapping[int, int], **parts: Any) -> None:
    """Settle this in a statement of its own, as a round does."""
    rows(*Settling(epochs, **parts).statement())


def _send(lines: list[ActiveLine], hands: dict[int, Buffer[Outgoing]], settle: Callable[..., Any]) -> None:
    """Settle as if every endpoint answered at once, and release the lines."""
    epochs, ended = {line.id: line.claim.epoch for line in lines}, list[Settlement]()
    for _ in range(PER_LINE):
        going = [(line, hands[line.id].take(deferred_next=False)) for line in lines]
        settle(epochs, settlements=ended, marks=[mark_of(line, delivery) for line, delivery in going if delivery])
        for line, _ in going:
            line.numbers.last += 1
        ended = [_answered(line.id, delivery.id) for line, delivery in going if delivery]
    settle(epochs, settlements=ended, states=[line.update() for line in lines])


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


def subscribe(names: Sequence[str], event_types: Sequence[EventType], terms: Sequence[Mapping[str, str]]) -> None:
    """Create subscribers with these names, each with one subscription; then vacuum, as autovacuum would in a while."""
    subscribers = Subscriber.objects.bulk_create(Subscriber(name=name) for name in names)
    Subscription.objects.bulk_create(
        Subscription(subscriber=subscriber, event_type=event_type, **{**NOT_SENT, **own})
        for subscriber, event_type, own in zip(subscribers, event_types, terms, strict=True)
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) subscriptions_subscription, subscriptions_subscriber, delivery_line")


class Configuration:
    """The database of a running stack."""

    def subscribe(
        self, names: Sequence[str], event_types: Sequence[str], endpoints: Sequence[str], kind: str, script: str
    ) -> None:
        """Create subscribers with these names and endpoints, each for its event type, which is created too."""
        made = EventType.objects.bulk_create(EventType(name=name, kind=kind) for name in dict.fromkeys(event_types))
        known = {event_type.name: event_type for event_type in made}
        terms = [{"endpoint": endpoint, "script": script} for endpoint in endpoints]
        subscribe(names, [known[name] for name in event_types], terms)


@contextmanager
def prepared_statements() -> Iterator[list[int]]:
    """Yield a list that gets the number of statements of each round trip past Django, which does not count them."""
    numbers, run = list[int](), Connection.run

    def counted(itself: Connection, statements: Sequence[PreparedStatement], *more: Any, **named: Any) -> list[Rows]:
        numbers.append(len(statements))
        return run(itself, statements, *more, **named)

    with patch.object(Connection, "run", counted):
        yield numbers


class PagesDatabase:
    """The database of a large installation, and somebody who opens all pages of its admin site and of a portal."""

    def __init__(self) -> None:
        logging.disable(logging.WARNING)  # which pages are refused says nothing of those that are not
        call_command("migrate", verbosity=0)
        self._event_type = EventType.objects.create(name="Pages", kind="TOPIC")
        self._browser = Client(SERVER_NAME="127.0.0.1")
        self._browser.force_login(User.objects.create(username="pages", is_staff=True, is_superuser=True))

    def fill(self, subscribers: int, finished: int, waiting: int) -> None:
        """Store subscribers with a subscription each, and finished and waiting deliveries to all of them."""
        subscribe(
            [f"pages-{number}" for number in range(subscribers)], [self._event_type] * subscribers, [{}] * subscribers
        )
        receivers = [
            *Subscription.objects.filter(subscriber__lines__lane=Lane.MAIN).values_list("subscriber__lines", "pk")
        ]
        days = [today() - dt.timedelta(days=number) for number in range(DAYS, 0, -1)]
        for day in days:
            open_days(day, ahead=0)
        url = os.environ["DATABASE_URL"]
        filling.finish(url, receivers, self._event_type.pk, count=finished, days=days)
        filling.store_open(url, receivers, self._event_type.pk, count=waiting, day=days[0])
        filling.count_minutes(url, self._event_type.pk, subscribers=subscribers)
        filling.settle_down(url)

    def queries(self) -> dict[str, int]:
        """Return the addresses of all pages, about the newest row of each model, and how many queries each takes."""
        taken = {}
        for address in (*self._of_models(), *self._of_one_subscriber()):
            live_numbers.forget()
            reset_queries()  # Django keeps some thousands
            with CaptureQueriesContext(connection) as queries, prepared_statements() as prepared:
                answer = self._browser.get(address)
            if answer.status_code == HTTPStatus.OK:
                taken[address] = len(queries) + sum(prepared)
        return taken

    def _of_models(self) -> Iterator[str]:
        yield "/admin/"
        for model, pages in site._registry.items():  # noqa: SLF001 - as Django's own documentation generator reads it
            newest = model._default_manager.order_by("-pk").values_list("pk", flat=True).first()  # noqa: SLF001 - documented
            root = reverse(admin_urlname(model._meta, SafeString("changelist")))  # noqa: SLF001 - documented
            paths = [str(known.pattern) for known in pages.get_urls() if not str(known.pattern).startswith("^")]
            yield from (
                root + path.replace("<path:object_id>", str(newest)) for path in paths if newest or ":" not in path
            )

    def _of_one_subscriber(self) -> Iterator[str]:
        """Yield pages of what has ended, narrowed lists, some answers of the API, and the pages of a portal."""
        sent = Attempt.objects.latest("pk")
        delivery = Delivery.objects.select_related("subscription__subscriber").get(pk=sent.delivery_id or 0)
        assert delivery.subscription  # noqa: S101 - all are stored for subscriptions
        subscriber = delivery.subscription.subscriber
        about = {
            "subscriber": subscriber.pk,
            "subscription": delivery.subscription.pk,
            "delivery": delivery.pk,
            "message": delivery.message_id,
            "event_type": self._event_type.pk,
        }
        now, issuer = timezone.now(), Issuer("pages")
        _, token = issue(None, now=now, issuer=issuer)
        self._browser.defaults["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        yield from OF_API
        _, link = issue_link(subscriber, now=now, issuer=issuer, scopes=PORTAL_SCOPES)
        self._browser.post(f"/portal/open/{link}", headers={"Sec-Fetch-Site": "same-origin"})
        yield from (f"/admin/{path.format(**about)}" for path in OF_ADMIN)
        yield from (f"/portal/{path.format(**about)}" for path in OF_PORTAL)

    def open(self, address: str) -> float:
        """Open a page in a process that has nothing in its cache; return the seconds that its answer takes."""
        live_numbers.forget()
        began = time.perf_counter()
        self._browser.get(address)
        return time.perf_counter() - began


class MatchingDatabase:
    """A database with event types for each kind and number of subscriptions."""

    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self._event_types: dict[tuple[str, int], EventType] = {}

    def subscribe(self, kind: str, count: int, matching: int) -> None:
        """Create an event type with `count` subscriptions, each with its own subscriber; some of them match."""
        name = f"{kind}.{count}"
        self._event_types[kind, count] = event_type = EventType.objects.create(name=name, kind="TOPIC")
        values = [WANTED if number < matching else f"customer-{number}" for number in range(count)]
        filters = [
            {"header_filter_string": value} if kind == "header" else {"filter": f"{PATH} = '{value}'"}
            for value in values
        ]
        subscribe([f"{name}-{number}" for number in range(count)], [event_type] * count, filters)

    def publish(self) -> dict[tuple[str, int], float]:
        """Publish one message to each of the event types; return the seconds of each."""
        seconds = {}
        for key, event_type in self._event_types.items():
            began = time.perf_counter()
            publish_copies(event_type, BODY)
            seconds[key] = time.perf_counter() - began
        return seconds


class SummaryDatabase:
    """A database with a history of the day before yesterday, which is summarized with Spark or in SQL."""

    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self._address = os.environ["DATABASE_URL"]
        self._window = whole(today() - dt.timedelta(days=2))

    def write(self, attempts: int) -> int:
        """Write a history of about `attempts` attempts; return the exact number."""
        until = self._window.end - dt.timedelta(seconds=1)
        write_history(until, messages=attempts // DELIVERIES_PER_MESSAGE, days=1)
        with psycopg.connect(self._address, autocommit=True) as database:
            database.execute("VACUUM ANALYZE")
            ((count,),) = database.execute("SELECT count(*) FROM delivery_attempt").fetchall()
        return int(count)

    def in_sql(self) -> dict[str, float]:
        """Summarize in PostgreSQL alone; return the seconds it took."""
        began = time.perf_counter()
        with psycopg.connect(self._address, autocommit=True) as database:
            summaries_sql.sum_up(database, self._window, vocabulary(), objective=OBJECTIVE)
        return {"seconds": time.perf_counter() - began}

    def by_spark(self) -> dict[str, Any]:
        """Summarize with Spark; return the seconds without its start, the lake's bytes, and the error if any."""
        result: dict[str, Any] = {"error": "Spark has not reported anything"}

        def take(report: Mapping[str, Any]) -> None:
            result.update({name: report[name] for name in ("seconds", "lake_bytes", "error") if name in report})

        with tempfile.TemporaryDirectory(prefix="broker-bench-") as folder:
            settings = replace(
                spark_settings(),
                lake=str(Path(folder, "lake")),
                master=MASTER,
                minutes=MAX_MINUTES,
                objective=OBJECTIVE,
                database_url=self._address,
            )
            job = job_of(1, [self._window], settings)
            run_application(job, settings, on_report=take, on_output=len, is_stopping=lambda: False)
        return result
