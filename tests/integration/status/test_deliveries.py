"""Lists of deliveries over the API, and messages, deliveries and attempts in the admin."""

import datetime as dt
from types import SimpleNamespace
from typing import Any, LiteralString

import pytest
from django.contrib.admin.sites import site
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from broker_project.core import db
from broker_project.core.admin import lists
from delivery.models import (
    Announcement,
    Attempt,
    Callback,
    DeadLetter,
    Delivery,
    Hold,
    IdempotencyKey,
    Line,
    LineEvent,
    Mailbox,
    Message,
    PageRead,
    QueueGroup,
    Replay,
    ReplayState,
    StorageDay,
    VolatileCount,
)
from delivery.operations import cancel, cancel_deliveries_of
from delivery.status import delivery_search
from delivery.status.line_status import MAX_COUNTED
from delivery.statuses import DeliveryStatus
from subscriptions.models import Subscriber
from tests.support import factories
from tests.support.admin import change_page, messages_of
from tests.support.api import client_of, publish, read_pages
from tests.support.broker import crash_while_sending, line_of, publish_numbered, settle, settlement
from tests.support.factories import subscriber, subscription
from tests.support.mailboxes import pulled_subscription

REJECTED, PENDING = DeliveryStatus.REJECTED, DeliveryStatus.PENDING

pytestmark = pytest.mark.django_db

HOUR = dt.timedelta(hours=1)
MANY = 60
"""More than a page."""

MODELS = (
    *(Message, Delivery, DeadLetter, QueueGroup, Callback, Attempt, Replay, Line, LineEvent, Mailbox),
    *(Announcement, VolatileCount, IdempotencyKey, StorageDay),
)


@pytest.fixture
def receiving(storage: None) -> Subscriber:
    """A subscriber with deliveries of every kind, among those of another."""
    wanted = subscriber("wanted")
    subscriptions = [subscription(wanted), subscription(wanted), subscription(subscriber("other"))]
    for number in range(4):
        for one in subscriptions:
            publish_numbered(one.event_type, 1, number)
    line = line_of(wanted)
    retried = {"status": PENDING, "status_code": 500, "pause": 60.0}
    endings: list[dict[str, Any]] = [{}, {"status": REJECTED, "status_code": 404}, retried]
    for fields in endings:
        driven, delivery, number = crash_while_sending(line)
        driven.numbers.last = number
        settled = [settlement(driven, delivery, **fields)]
        settle({line.pk: driven.claim.epoch}, settlements=settled, states=[driven.update()])
    cancel_deliveries_of(subscriptions[1].pk, reason="unwanted")
    crash_while_sending(line)
    return wanted


def ids(client: Client, query: str) -> list[int]:
    return [one["id"] for one in read_pages(client, "/api/v1/deliveries", query)]


@pytest.mark.behaviour("10.1")
def test_a_delivery_in_flight_is_listed_once_although_it_was_read_twice(receiving: Subscriber) -> None:
    line = line_of(receiving)
    ids = [*Delivery.objects.open().values_list("pk", flat=True)]
    for part in (ids, ids[:2] * 2):
        PageRead.objects.create(line=line, epoch=line.epoch, delivery_ids=part)
    for client in (client_of(), client_of(receiving)):
        (listed,) = client.get("/api/v1/deliveries?status=IN_FLIGHT").json()["items"]
        assert listed["status"] == "IN_FLIGHT"


@pytest.mark.behaviour("10.1")
@pytest.mark.parametrize("status", [None, *DeliveryStatus.values])
def test_lists_have_exactly_the_filtered_deliveries(receiving: Subscriber, status: str | None) -> None:
    of_status = {"status": status} if status else {}
    asked = f"&status={status}" if status else ""
    everything = Delivery.objects.filter(**of_status).order_by("-id")
    own = [*everything.filter(subscription__subscriber=receiving).values_list("id", flat=True)]
    one = everything.filter(subscription__subscriber=receiving).first()
    management, receiver = client_of(), client_of(receiving)
    assert ids(management, asked) == [*everything.values_list("id", flat=True)]
    assert ids(management, f"subscriber=wanted{asked}") == own
    assert ids(receiver, asked) == own
    assert ids(receiver, f"subscriber=other{asked}") == []
    assert ids(management, f"subscriber=nobody{asked}") == []
    if one:
        assert one.pk in ids(receiver, f"subscription={one.subscription_id}{asked}")
        assert one.pk in ids(receiver, f"message={one.message_id}{asked}")


@pytest.mark.behaviour("2.16")
@pytest.mark.parametrize("statuses", ["PENDING,CANCELLED", "CANCELLED,PENDING"])
def test_what_ends_while_several_statuses_are_read_is_listed_once(
    receiving: Subscriber, monkeypatch: pytest.MonkeyPatch, statuses: str
) -> None:
    of_both = Delivery.objects.filter(status__in=statuses.split(","), subscription__subscriber=receiving)
    expected = [*of_both.order_by("-pk").values_list("pk", flat=True)]
    ending = [*of_both.filter(status="PENDING").values_list("pk", flat=True)]

    def read(statement: LiteralString, arguments: db.Arguments) -> db.Rows:
        found = db.rows(statement, arguments)
        cancel(ending, reason="unwanted")
        return found

    monkeypatch.setattr(delivery_search, "rows", read)
    assert ids(client_of(receiving), f"status={statuses}") == expected


def test_a_list_takes_as_many_queries_for_many(receiving: Subscriber, django_assert_max_num_queries: Any) -> None:
    client = client_of()
    with django_assert_max_num_queries(5):
        assert len(client.get("/api/v1/deliveries").json()["items"]) > 10


@pytest.mark.parametrize("status", [None, *DeliveryStatus.values])
def test_lists_in_the_admin_hold_the_same(admin: Client, receiving: Subscriber, status: str | None) -> None:
    own = Delivery.objects.filter(subscription__subscriber=receiving, **({"status": status} if status else {}))
    asked = f"&status__exact={status}" if status else ""
    page = admin.get(f"/admin/delivery/delivery/?line__id__exact={line_of(receiving).pk}{asked}")
    assert [row.pk for row in page.context["cl"].result_list] == [*own.order_by("-pk").values_list("pk", flat=True)]


@pytest.fixture
def message() -> Message:
    """Return one of two messages, each with a finished delivery and its attempt; the line is held."""
    return stored_messages(2)[-1]


def stored_messages(number_of_each: int) -> list[Message]:
    """Store this number of messages, and as many of each thing that the lists show."""
    made = factories.subscription(factories.subscriber("shop"), factories.event_type("Order.Paid"))
    line = line_of(made.subscriber)
    pulled_subscription(made.subscriber)
    now = dt.datetime.now(dt.UTC)
    stored = Message.objects.bulk_create(
        Message(
            event_type=made.event_type,
            body=b'{"html": "<script>alert(1)</script>", "bad": "\xff\x00"}',
            size=53,
            content_type="application/json",
            headers=[["X-Html", "<b>bold</b>"]],
            outcome="ROUTED",
            deliveries_count=1,
        )
        for _ in range(number_of_each)
    )
    ended = {"status": "REJECTED", "finished_at": now, "closed_on": now.date(), "sequence": 7}
    sent = Delivery.objects.bulk_create(
        Delivery(message=one, subscription=made, line=line, size=53, **ended) for one in stored
    )
    answer = {"status_code": 404, "answer_excerpt": b"<h1>no\xfe\x00</h1>"}
    Attempt.objects.bulk_create(
        Attempt(delivery=one, number=1, started_at=now, duration_ms=12, **answer) for one in sent
    )
    head = Delivery.objects.create(message=stored[-1], subscription=made, line=line, size=53)
    LineEvent.objects.create(line=line, kind="NUMBER_UNCERTAIN", sequence=6, reason="worker vanished")
    Hold.objects.create(delivery=head, line=line, reason="connection refused", failures=3)
    waiting = {"line": line, "delivery_ids": [head.pk], "size": 53, "waits_for": "RETRY", "due_at": now}
    QueueGroup.objects.bulk_create(QueueGroup(message=one, **waiting) for one in stored)
    Callback.objects.bulk_create(
        Callback(group_id=number, message=one, token_hash=b"%d" % number, expires_at=now)
        for number, one in enumerate(stored)
    )
    each = range(number_of_each)
    Replay.objects.bulk_create(Replay(subscription=made, state=ReplayState.DONE, finished_at=now) for _ in each)
    Announcement.objects.bulk_create(
        Announcement(kind="Broker.Line.Paused", line=line, subscription=made) for _ in each
    )
    counted = {"event_type_id": made.event_type_id or 0, "subscription": made, "delivered": 1}
    VolatileCount.objects.bulk_create(VolatileCount(hour=now - number * HOUR, **counted) for number in each)
    repeated = {"message_id": stored[-1].pk, "outcome": "ROUTED", "deliveries_count": 1}
    IdempotencyKey.objects.create(key="order-1", fingerprint=b"x" * 32, expires_at=now, **repeated)
    return stored


@pytest.mark.parametrize("model", MODELS)
def test_lists_open_in_few_queries_and_count_no_table(admin: Client, model: type[Message]) -> None:
    stored_messages(MANY)
    with CaptureQueriesContext(connection) as queries:
        answer = admin.get(reverse(f"admin:delivery_{model.__name__.lower()}_changelist"))
    assert answer.status_code == 200
    assert len(queries) <= 8
    assert [query["sql"] for query in queries if "COUNT(" in query["sql"] and "delivery_" in query["sql"]] == []


@pytest.mark.parametrize("model", MODELS)
def test_nothing_is_added_changed_or_deleted_by_hand(admin: Client, message: Message, model: type[Message]) -> None:
    row = model.objects.all()[:1].get()
    name = f"admin:delivery_{model.__name__.lower()}"
    assert admin.post(reverse(f"{name}_add"), {}).status_code == 403
    assert admin.post(reverse(f"{name}_change", args=[row.pk]), {}).status_code == 403
    assert admin.post(reverse(f"{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403


def test_every_model_is_registered() -> None:
    assert {model for model in site._registry if model._meta.app_label == "delivery"} == set(MODELS)


def test_a_message_shows_its_payload_as_text_and_its_deliveries(admin: Client, message: Message) -> None:
    text = change_page(admin, message)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert(1)" not in text
    assert r"\xff\x00" in text
    assert "&lt;b&gt;bold&lt;/b&gt;" in text
    assert all(str(pk) in text for pk in Delivery.objects.filter(message=message).values_list("pk", flat=True))
    story = text.partition('<ol class="timeline">')[2].partition("</ol>")[0]
    assert "Published with a management key: Routed." in story
    assert f">dlv_{Delivery.objects.get(message=message, status='REJECTED').pk}</span></a> to " in story
    assert ": Rejected." in story


@pytest.mark.parametrize("text", ["abc", "-1", "9" * 30, "%00", "\u0663", "1; DROP TABLE"])
def test_a_search_for_anything_but_an_id_finds_nothing(admin: Client, message: Message, text: str) -> None:
    answer = admin.get(reverse("admin:delivery_message_changelist"), {"q": text})
    assert (answer.status_code, len(answer.context["cl"].result_list)) == (200, 0)


@pytest.mark.parametrize("kind", ["subscription", "line"])
def test_a_search_finds_what_a_filtered_list_does_not_show(admin: Client, message: Message, kind: str) -> None:
    oldest = Delivery.objects.oldest_first()[0]
    fields = {"subscription": oldest.subscription, "line": oldest.line, "size": 2}
    Delivery.objects.bulk_create(Delivery(message=message, **fields) for _ in range(MAX_COUNTED))
    narrowed = {f"{kind}__id__exact": getattr(oldest, kind).pk}
    for query in ({"q": oldest.pk}, {"q": f" dlv_{oldest.pk}"}, {"message__id": oldest.message_id}):
        answer = admin.get(reverse("admin:delivery_delivery_changelist"), {**narrowed, **query})
        assert [*answer.context["cl"].result_list] == [oldest]


def test_what_was_chosen_is_acted_on_though_the_list_has_moved_on(
    admin: Client, receiving: Subscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = Delivery.objects.filter(status=PENDING).latest("pk")
    narrowed = f"{reverse('admin:delivery_delivery_changelist')}?status__exact=PENDING&from=1h"
    form = {"action": "cancel_chosen", "_selected_action": [chosen.pk]}
    assert "Cancel 1 delivery?" in admin.post(narrowed, form).text
    later = timezone.now() + HOUR
    monkeypatch.setattr(lists, "timezone", SimpleNamespace(now=lambda: later, localtime=timezone.localtime))
    done = admin.post(narrowed, {**form, "confirmed": "yes"}, follow=True)
    chosen.refresh_from_db()
    assert (messages_of(done), chosen.status) == ("Cancelled: 1 delivery.", DeliveryStatus.CANCELLED)


def test_a_delivery_whose_subscription_is_gone_still_opens(admin: Client, message: Message) -> None:
    Delivery.objects.filter(status="PENDING").delete()
    row = Delivery.objects.filter(message=message).get()
    assert row.subscription
    row.subscription.delete()
    assert str(row.pk) in change_page(admin, row)
    assert admin.get(reverse("admin:delivery_delivery_changelist")).status_code == 200


def test_a_message_whose_event_type_and_publisher_are_gone_still_opens(admin: Client) -> None:
    wanted, publisher = factories.event_type(), factories.publisher("till")
    everything = factories.subscription(event_pattern="*")
    published = publish(client_of(publisher), event=wanted.name)
    wanted.delete(), publisher.delete()
    told = change_page(admin, Message.objects.get(pk=published.json()["id"]))
    assert "Published by a publisher that was deleted: Routed." in told
    assert "by a publisher that was deleted" in change_page(admin, Delivery.objects.get(subscription=everything))
