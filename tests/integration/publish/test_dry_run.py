"""Dry runs: they decide as publishing does, say why, and store nothing."""

import random
from typing import Any

import pytest
from django.test import Client

from broker_project.core.db import rows
from delivery.models import Delivery, IdempotencyKey, Message
from subscriptions.models import EventKind, EventType, Publisher, Status, Subscription
from tests.support import factories
from tests.support.api import EVENT, Answer, client_of, client_with, problem_of, publish

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
BIG = "$$->'Body'->'n' > '5'"
BODY = b'{"state": "open", "n": 9}'
LAST_IDS = "SELECT last_value, is_called FROM delivery_message_id_seq"


def dry_run(client: Client, body: bytes = BODY, event: str = EVENT, *, query: str = "", **headers: str) -> Answer:
    return publish(client, body, event=f"{event}/dry-run{query}", **headers)


def decided(answer: Answer) -> list[tuple[int, str, str]]:
    assert answer.status_code == 200, answer.json()
    return [(one["subscription_id"], one["decision"], one["why"]) for one in answer.json()["subscriptions"]]


@pytest.mark.behaviour("2.15")
def test_each_subscription_is_told_with_its_reason(management: Client, event_type: EventType) -> None:
    plain = factories.subscription(event_type=event_type)
    paused = factories.subscription(event_type=event_type)
    Subscription.objects.filter(pk=paused.pk).update(paused_since="2026-01-01T00:00Z", paused_by="HAND")
    failing = factories.subscription(event_type=event_type, filter=BIG)
    closed = factories.subscription(event_type=event_type, filter="$$->'Body'->>'state' = 'closed'")
    blue = factories.subscription(event_type=event_type, header_filter_string="blue")
    inactive = factories.subscription(event_type=event_type, status=Status.INACTIVE)
    of_inactive = factories.subscription(factories.subscriber(status=Status.INACTIVE), event_type)
    pattern = factories.subscription(event_type=None, event_pattern="Shop.*")
    factories.subscription()
    answer = dry_run(management, b'{"state": "open", "n": 1e999999}')
    assert decided(answer) == [
        (plain.pk, "RECEIVES", "There is no filter."),
        (pattern.pk, "RECEIVES", "There is no filter."),
        (
            paused.pk,
            "PAUSED",
            "The subscription is paused: the event is stored, and sent once the subscription is resumed.",
        ),
        (
            failing.pk,
            "FILTER_FAILS",
            "filter failed: a number has more than 131072 digits, or 16383 after the decimal point",
        ),
        (closed.pk, "FILTER", "The filter is false."),
        (blue.pk, "HEADER_FILTER", "The message has no FILTER_STRING."),
        (inactive.pk, "INACTIVE", "The subscription is INACTIVE."),
        (of_inactive.pk, "INACTIVE", "The subscriber is INACTIVE."),
    ]
    assert answer.json()["counts"] == {
        "RECEIVES": 2, "PAUSED": 1, "FILTER_FAILS": 1, "FILTER": 1, "HEADER_FILTER": 1, "INACTIVE": 2
    }  # fmt: skip
    assert (answer.json()["outcome"], answer.json()["deliveries"], answer.json()["next"]) == ("ROUTED", 4, None)
    (term,) = answer.json()["subscriptions"][4]["filter"]["terms"]
    assert (term["text"], term["values"]) == (
        "$$->'Body'->>'state' = 'closed'",
        [{"path": "$$->'Body'->>'state'", "value": "open"}],
    )


@pytest.mark.behaviour("2.15")
@pytest.mark.parametrize("destination", [None, "default", "shop", "shop/1", "nobody"])
def test_it_decides_as_publishing_does(client: Client, event_type: EventType, destination: str | None) -> None:
    """The subscriptions that a dry run names are exactly those that get a delivery of the same event."""
    choose = random.Random(f"{destination}")  # noqa: S311 - nothing secret
    subscribers = [factories.subscriber("shop"), *(factories.subscriber() for _ in range(5))]
    for _ in range(60):
        factories.subscription(
            choose.choice(subscribers),
            event_type,
            position=choose.randrange(4),
            filter=choose.choice(["", OPEN, BIG, f"NOT ({OPEN})", "$$->'Body'->'missing' = '1'"]),
            header_filter_string=choose.choice(["", "", "eu", "us"]),
            status=choose.choice([Status.ACTIVE, Status.ACTIVE, Status.INACTIVE]),
        )
    headers = {"Filter_String": "eu", **({"Broker_Destination": destination} if destination else {})}
    told = dry_run(client, BODY, query="?limit=100", **headers).json()
    answer = publish(client, BODY, **headers).json()
    gets = {one["subscription_id"] for one in told["subscriptions"] if one["decision"] == "RECEIVES"}
    assert gets == {*Delivery.objects.values_list("subscription_id", flat=True)}
    assert [told["outcome"], told["deliveries"]] == [answer["outcome"], answer["deliveries"]]
    assert sum(told["counts"].values()) == len(told["subscriptions"]) == 60


@pytest.mark.behaviour("2.15")
def test_nothing_is_stored_and_nothing_used_up(client: Client, event_type: EventType) -> None:
    factories.subscription(event_type=event_type)
    before = rows(LAST_IDS)
    dry_run(client, Idempotency_Key="order-1")
    assert [Message.objects.count(), Delivery.objects.count(), IdempotencyKey.objects.count()] == [0, 0, 0]
    assert rows(LAST_IDS) == before
    assert publish(client, BODY, Idempotency_Key="order-1").json().get("replayed") is None
    told = dry_run(client, Idempotency_Key="order-1").json()
    assert (told["repeats"], told["subscriptions"]) == (Message.objects.get().pk, [])
    assert problem_of(dry_run(client, b"{}", Idempotency_Key="order-1")) == (422, "idempotency_key_reused")


@pytest.mark.behaviour("2.15")
@pytest.mark.parametrize(
    ("body", "headers", "event"),
    [
        (b"{", {}, EVENT),
        (b'{"n": "nine"}', {}, EVENT),
        (BODY, {}, "Shop.Order.Unknown"),
        (BODY, {"CallbackURL": "https://shop.example.org/done"}, EVENT),
        (BODY, {"Broker_TTL": "a while"}, EVENT),
        (BODY, {"Broker_Durability": "volatile", "Idempotency_Key": "x"}, EVENT),
        (BODY, {"Broker_Destination": "shop"}, "Shop.Call"),
        (BODY, {"Broker_Destination": "shop"}, "Shop.Job"),
        (BODY, {}, "Broker.Line.Paused"),
    ],
)
def test_it_refuses_what_publishing_refuses(
    client: Client, event_type: EventType, body: bytes, headers: dict[str, str], event: str
) -> None:
    EventType.objects.filter(pk=event_type.pk).update(schema={"properties": {"n": {"type": "number"}}}, version=2)
    factories.event_type("Shop.Call", EventKind.SYNC)
    factories.event_type("Shop.Job", EventKind.QUEUE)
    told, refused = dry_run(client, body, event, **headers), publish(client, body, event=event, **headers)
    assert (told.status_code, told.json()) == (refused.status_code, refused.json())
    assert told.status_code >= 400


@pytest.mark.behaviour("2.15")
def test_the_limits_of_a_publisher_count(event_type: EventType) -> None:
    shop = factories.publisher(max_open_messages=1)
    factories.subscription(event_type=event_type)
    client = client_with(factories.api_key(shop, requests_per_minute=3)[1])
    assert dry_run(client).status_code == 200
    assert publish(client, BODY).status_code == 202
    assert problem_of(dry_run(client)) == (429, "too_many_open_messages")
    assert problem_of(dry_run(client)) == (429, "too_many_requests")


def test_jobs_name_their_groups(management: Client) -> None:
    job = factories.event_type(kind=EventKind.QUEUE)
    first, second = factories.subscription(event_type=job), factories.subscription(event_type=job, filter=OPEN)
    third = factories.subscription(event_type=job)
    told = dry_run(management, event=job.name).json()
    groups = {one["subscription_id"]: one["group"] for one in told["subscriptions"]}
    assert (told["deliveries"], told["groups"]) == (3, 2)
    assert groups[first.pk] == groups[third.pk] != groups[second.pk]


def test_of_calls_the_oldest_that_qualifies_is_called(management: Client) -> None:
    asked = factories.event_type(kind=EventKind.SYNC)
    first = factories.subscription(event_type=asked, filter=OPEN)
    second = factories.subscription(event_type=asked, filter=BIG)
    third = factories.subscription(event_type=asked, filter=f"NOT {OPEN}")
    assert decided(dry_run(management, event=asked.name)) == [
        (first.pk, "RECEIVES", "The filter is true."),
        (second.pk, "NOT_FIRST", f"Subscription {first.pk}, which is older, is called."),
        (third.pk, "FILTER", "The filter is false."),
    ]


def test_volatile_events_need_subscriptions_that_are_pushed(management: Client, event_type: EventType) -> None:
    factories.subscription(event_type=event_type, filter=BIG)
    assert dry_run(management, b'{"n": 1e999999}', Broker_Durability="volatile").json()["deliveries"] == 0
    assert dry_run(management, Broker_Durability="volatile").json()["deliveries"] == 1
    factories.subscription(event_type=event_type, endpoint="", delivery_mode="PULL")
    assert problem_of(dry_run(management, Broker_Durability="volatile")) == (400, "volatile_pulled")


@pytest.mark.behaviour("2.15", "2.7")
@pytest.mark.parametrize("durability", ["guaranteed", "volatile"])
def test_the_limit_of_deliveries_counts(client: Client, event_type: EventType, settings: Any, durability: str) -> None:
    settings.MAX_DELIVERIES = 1
    for _ in range(2):
        factories.subscription(event_type=event_type)
    assert problem_of(dry_run(client, Broker_Durability=durability)) == (413, "too_many_deliveries")


@pytest.mark.behaviour("2.15", "2.6")
def test_a_repeat_is_told_also_where_its_schema_has_changed(client: Client, event_type: EventType) -> None:
    first = publish(client, BODY, Idempotency_Key="order-1").json()
    EventType.objects.filter(pk=event_type.pk).update(schema={"type": "array"}, version=2)
    assert dry_run(client, Idempotency_Key="order-1").json()["repeats"] == first["id"]
    assert problem_of(dry_run(client, Idempotency_Key="order-2")) == (422, "schema_violated")


def test_a_publisher_does_not_see_what_filters_compare_with(
    client: Client, event_type: EventType, publisher: Publisher
) -> None:
    factories.subscription(event_type=event_type, filter=OPEN, header_filter_string="secret")
    (told,) = dry_run(client, Filter_String="eu").json()["subscriptions"]
    assert told["header_filter"] == {"expected": "", "actual": "eu", "matches": False}
    assert told["filter"]["terms"] == [
        {
            "text": "",
            "result": "true",
            "values": [{"path": "$$->'Body'->>'state'", "value": "open"}],
            "reason": "",
        }
    ]
    publisher.event_types.add(factories.event_type())
    assert problem_of(dry_run(client)) == (403, "event_type_not_allowed")
    assert dry_run(client_of(factories.subscriber())).status_code == 403


def test_subscriptions_come_a_page_at_a_time(management: Client, event_type: EventType) -> None:
    for number in range(7):
        factories.subscription(event_type=event_type, filter=OPEN if number % 2 else f"NOT {OPEN}")
    url: Any = "?limit=3"
    pages: list[list[tuple[int, str, str]]] = []
    while url:
        answer = dry_run(management, query=url)
        pages.append(decided(answer))
        url = answer.json()["next"] and f"?{answer.json()['next'].partition('?')[2]}"
    assert [[decision for _, decision, _ in page] for page in pages] == [
        ["RECEIVES"] * 3,
        ["FILTER"] * 3,
        ["FILTER"],
    ]
    assert len({one[0] for page in pages for one in page}) == 7
    filtered = dry_run(management, query="?decision=FILTER&limit=100")
    assert (len(decided(filtered)), filtered.json()["counts"]) == (4, {"RECEIVES": 3, "FILTER": 4})
