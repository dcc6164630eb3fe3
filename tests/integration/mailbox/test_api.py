"""Mailboxes over the API: what is fetched, what is said of receipts, how they stand (contract 9)."""

from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from delivery.mailbox import long_poll
from delivery.mailbox.long_poll import MAX_POLLS
from delivery.models import Delivery
from subscriptions.models import EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.api import JSON, Answer, client_of, problem_of
from tests.support.broker import publish_numbered, statuses
from tests.support.mailboxes import pulled_subscription, time_out_hand_outs

pytestmark = pytest.mark.django_db

SHOP = "shop"
FORGED = "A" * 32
BAD_NUMBERS: list[Any] = [0, 101, -1, 2**70, 1.0, "5", True, None, []]
BAD_EXTENSIONS: list[Any] = [0, 43_201, -1, 1.5, "30", True, None]
BAD_SECONDS: list[Any] = [-1, 20.1, 1e300, "5", True, None, {}]


@pytest.fixture
def shop() -> Subscriber:
    return factories.subscriber(SHOP)


@pytest.fixture
def pulled(shop: Subscriber, event_type: EventType) -> Subscription:
    return pulled_subscription(shop, event_type)


@pytest.fixture
def reader(pulled: Subscription) -> Client:
    """A client with a key of the subscriber."""
    return client_of(pulled.subscriber)


def call(client: Client, what: str, mailbox: str = SHOP, **said: Any) -> Answer:
    return client.post(f"/api/v1/mailboxes/{mailbox}/{what}", said)


def fetched(client: Client, **said: Any) -> list[dict[str, Any]]:
    answer = call(client, "next", **said)
    assert answer.status_code in {200, 204}
    return [*answer.json()["messages"]] if answer.status_code == 200 else []


def receipts(client: Client, **said: Any) -> list[str]:
    return [one["receipt"] for one in fetched(client, **said)]


def results(answer: Answer) -> list[tuple[int, str]]:
    assert answer.status_code == 200
    return [(one["status"], one["code"]) for one in answer.json()["results"]]


@pytest.mark.behaviour("9.1")
def test_the_oldest_come_each_with_a_receipt(reader: Client, pulled: Subscription, event_type: EventType) -> None:
    published = publish_numbered(event_type, 15)
    first, second, third = fetched(reader, max_messages=2), fetched(reader), fetched(reader)
    assert [one["body"].encode() for one in first + second + third] == published
    assert ([len(first), len(second), len(third)], len({one["receipt"] for one in first + second})) == ([2, 10, 3], 12)
    delivery = Delivery.objects.select_related("message").oldest_first()[0]
    published_at, until = (datetime.fromisoformat(first[0][name]) for name in ("published_at", "in_flight_until"))
    assert until == delivery.fetched_until
    assert delivery.message
    assert abs(published_at - delivery.message.published_at) < timedelta(milliseconds=1)
    assert first[0] == {
        "receipt": first[0]["receipt"],
        "id": f"dlv_{delivery.pk}",
        "delivery_id": delivery.pk,
        "message_id": delivery.message_id,
        "event_type": event_type.name,
        "subscription_id": pulled.pk,
        "published_at": first[0]["published_at"],
        "in_flight_until": first[0]["in_flight_until"],
        "in_flight_seconds": first[0]["in_flight_seconds"],
        "redeliveries": 0,
        "possible_duplicate": False,
        "content_type": JSON,
        "headers": {},
        "body": "0",
    }
    assert statuses(pulled) == ["IN_FLIGHT"] * 15


@pytest.mark.behaviour("9.1")
def test_an_empty_mailbox_has_no_content(reader: Client) -> None:
    answer = reader.generic("POST", f"/api/v1/mailboxes/{SHOP}/next")  # and without a body
    assert (answer.status_code, answer.content, "Retry-After" in answer) == (204, b"", False)


@pytest.mark.behaviour("9.1")
def test_a_subscriber_without_pull_subscriptions_has_an_empty_mailbox(shop: Subscriber) -> None:
    factories.subscription(shop)
    client = client_of(shop)
    assert call(client, "next").status_code == 204
    assert client.get(f"/api/v1/mailboxes/{SHOP}/status").json()["available"] == 0


@pytest.mark.behaviour("9.1")
def test_a_call_that_would_wait_gets_what_is_there_at_once(reader: Client, event_type: EventType) -> None:
    publish_numbered(event_type, 3)
    answer = call(reader, "next", max_messages=2, wait_seconds=1).json()
    assert ([one["body"] for one in answer["messages"]], answer["waited_seconds"]) == (["0", "1"], 0)


@pytest.mark.behaviour("9.1")
def test_a_call_that_may_not_wait_gets_retry_after(reader: Client) -> None:
    with ExitStack() as seats:
        for another in range(MAX_POLLS):
            seats.enter_context(long_poll.WAITING.slot(-another))
        answer = call(reader, "next", wait_seconds=20)
    assert (answer.status_code, answer["Retry-After"]) == (204, "1")


BAD_RECEIPTS: list[tuple[dict[str, Any], str]] = [
    ({}, "#"),
    ({"receipt": FORGED, "receipts": [FORGED]}, "#"),
    ({"receipt": 5}, "#/receipt"),
    ({"receipt": None}, "#/receipt"),
    ({"receipt": [FORGED]}, "#/receipt"),
    ({"receipt": "\0"}, "#/receipt"),
    ({"receipts": []}, "#/receipts"),
    ({"receipts": FORGED}, "#/receipts"),
    ({"receipts": {FORGED: 1}}, "#/receipts"),
    ({"receipts": [FORGED] * 1001}, "#/receipts"),
    ({"receipts": [FORGED, 5]}, "#/receipts/1"),
    ({"receipts": [None]}, "#/receipts/0"),
    ({"receipts": [FORGED], "reason": "x"}, "#/reason"),
]
INVALID_CALLS: list[tuple[str, dict[str, Any], str]] = [
    *[("next", {"max_messages": value}, "#/max_messages") for value in BAD_NUMBERS],
    *[("next", {"wait_seconds": value}, "#/wait_seconds") for value in BAD_SECONDS],
    ("next", {"most": 1}, "#/most"),
    ("next", {"max_messages": 1, "Max_messages": 1}, "#/Max_messages"),
    *[(what, said, pointer) for what in ("ack", "nack", "extend") for said, pointer in BAD_RECEIPTS],
    *[("extend", {"receipts": [FORGED], "seconds": value}, "#/seconds") for value in BAD_EXTENSIONS],
    *[("nack", {"receipt": FORGED, "not_attempted": value}, "#/not_attempted") for value in ("yes", None)],
    *[(what, {"receipt": FORGED, "not_attempted": True}, "#/not_attempted") for what in ("ack", "extend")],
]


@pytest.mark.parametrize(("what", "said", "pointer"), INVALID_CALLS)
def test_invalid_calls_are_refused_and_do_nothing(
    reader: Client, pulled: Subscription, what: str, said: dict[str, Any], pointer: str
) -> None:
    publish_numbered(pulled.event_type, 1)
    answer = call(reader, what, **said)
    assert problem_of(answer) == (400, "invalid")
    assert {error["pointer"] for error in answer.json()["errors"]} == {pointer}
    assert statuses(pulled) == ["PENDING"]


@pytest.mark.behaviour("9.2", "9.4")
def test_many_receipts_are_answered_one_by_one_in_their_order(reader: Client, pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 3)
    first, second, third = receipts(reader)
    call(reader, "nack", receipts=[second])
    answer = call(reader, "ack", receipts=[third, "", FORGED, second, third, first])
    assert answer.json()["results"] == [
        {"receipt": third, "status": 200, "code": "acknowledged", "delivery_status": "DELIVERED"},
        {"receipt": "", "status": 404, "code": "unknown_receipt"},
        {"receipt": FORGED, "status": 404, "code": "unknown_receipt"},
        {"receipt": second, "status": 409, "code": "returned", "delivery_status": "PENDING"},
        {"receipt": third, "status": 200, "code": "acknowledged", "delivery_status": "DELIVERED"},
        {"receipt": first, "status": 200, "code": "acknowledged", "delivery_status": "DELIVERED"},
    ]
    assert results(call(reader, "ack", receipts=[first])) == [(200, "acknowledged")], "and once more"


@pytest.mark.behaviour("9.4")
def test_a_single_receipt_is_answered_with_its_own_status(reader: Client, pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 2)
    stale, other = receipts(reader)
    time_out_hand_outs()
    newest = receipts(reader, max_messages=1)[0]
    said = [call(reader, "ack", receipt=receipt) for receipt in (stale, FORGED, newest, newest)]
    assert [problem_of(answer) for answer in said[:2]] == [(409, "stale_receipt"), (404, "unknown_receipt")]
    told = said[0].json()
    assert told["type"] == "/api/docs/problems#stale_receipt"
    assert (told["receipt"], told["delivery_status"]) == (stale, "IN_FLIGHT")
    done = {"receipt": newest, "status": 200, "code": "acknowledged", "delivery_status": "DELIVERED"}
    assert [(answer.status_code, answer.json()) for answer in said[2:]] == [(200, done)] * 2
    assert problem_of(call(reader, "nack", receipt=newest)) == (409, "acknowledged")
    assert call(reader, "ack", receipt=other).status_code == 200, "late, and not handed out again meanwhile"


@pytest.mark.behaviour("9.4")
def test_a_message_is_extended_by_the_given_or_the_mailboxs_own_time(reader: Client, shop: Subscriber) -> None:
    pulled = pulled_subscription(shop)
    Subscriber.objects.update(ack_seconds=600)
    publish_numbered(pulled.event_type, 1)
    (message,) = fetched(reader)
    (longer,) = call(reader, "extend", receipts=[message["receipt"]], seconds=3600).json()["results"]
    (same,) = call(reader, "extend", receipts=[message["receipt"]], seconds=1).json()["results"]
    assert (longer["code"], same["in_flight_until"]) == ("extended", longer["in_flight_until"])
    assert longer["in_flight_until"] > message["in_flight_until"]
    assert 0 < message["in_flight_seconds"] < 600 < same["in_flight_seconds"] < longer["in_flight_seconds"] < 3600
    answer = call(reader, "extend", receipt=message["receipt"])
    assert (answer.status_code, answer.json()["in_flight_until"]) == (200, longer["in_flight_until"])


@pytest.mark.behaviour("9.4")
def test_receipts_outlive_a_change_of_the_secret(reader: Client, pulled: Subscription, settings: Any) -> None:
    publish_numbered(pulled.event_type, 2)
    first, second = receipts(reader)
    former, settings.SECRET_KEY = settings.SECRET_KEY, "another" * 10
    assert problem_of(call(reader, "ack", receipt=first)) == (404, "unknown_receipt")
    settings.SECRET_KEY_FALLBACKS = [former]
    assert results(call(reader, "ack", receipts=[first, second])) == [(200, "acknowledged")] * 2


def test_a_thousand_receipts_go_in_one_call(reader: Client, pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 1)
    (receipt,) = receipts(reader)
    answer = call(reader, "ack", receipts=[receipt] * 1000)
    assert results(answer) == [(200, "acknowledged")] * 1000


@pytest.mark.behaviour("9.5")
def test_a_mailbox_shows_its_state_and_its_subscribers_settings(reader: Client, pulled: Subscription) -> None:
    Subscriber.objects.update(ack_seconds=60, max_redeliveries=5)
    publish_numbered(pulled.event_type, 5)
    back, done, *_ = receipts(reader, max_messages=3)
    call(reader, "nack", receipt=back)
    call(reader, "ack", receipt=done)
    told = reader.get(f"/api/v1/mailboxes/{SHOP}/status").json()
    assert told.pop("oldest_age_seconds") >= 0
    assert told.pop("oldest_published_at") is not None
    counts = {"available": 3, "in_flight": 1, "waiting": 0, "redelivered": 1, "expired": 0, "counted_to": 10_000}
    terms = {"mailbox_ordered": False, "ack_seconds": 60, "max_redeliveries": 5, "mailbox_days": 4}
    assert told == {**counts, **terms, "subscriptions": 1, "fetchable_subscriptions": 1}


@pytest.mark.behaviour("9.7")
def test_a_purge_leaves_messages_in_flight(reader: Client, pulled: Subscription) -> None:
    publish_numbered(pulled.event_type, 4)
    out = receipts(reader, max_messages=2)
    answer = call(reader, "purge")
    assert (answer.status_code, answer.json()) == (200, {"cancelled": 2, "in_flight": 2, "complete": True})
    assert results(call(reader, "ack", receipts=out[:1])) == [(200, "acknowledged")]
    assert results(call(reader, "nack", receipts=out[1:])) == [(200, "cancelled")]
    assert sorted(statuses(pulled)) == ["CANCELLED"] * 3 + ["DELIVERED"]
