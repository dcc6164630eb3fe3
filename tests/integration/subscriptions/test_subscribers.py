"""Subscribers and publishers over the API."""

import pytest
from django.test import Client

from subscriptions.models import Subscriber
from tests.support import factories
from tests.support.api import client_of, invalid_fields, problem_of

pytestmark = pytest.mark.django_db

SUBSCRIBERS = "/api/v1/subscribers"

PUBLISHERS = "/api/v1/publishers"


@pytest.mark.behaviour("1.3")
def test_by_default_a_subscriber_is_active_and_has_500_queued() -> None:
    made = client_of().post(SUBSCRIBERS, {"name": "shop"})
    body = made.json()
    assert (made.status_code, made["Location"]) == (201, f"{SUBSCRIBERS}/shop")
    assert body == {
        "name": "shop",
        "description": "",
        "status": "ACTIVE",
        "headers": {},
        "max_queued_to_send": 500,
        "max_queued_bytes": 1_048_576,
        "refill_percent": 40,
        "processing": "SERIAL",
        "concurrency": 1,
        "ordering_key": "",
        "mailbox_ordered": False,
        "ack_seconds": 30,
        "max_redeliveries": None,
        "mailbox_days": None,
        "unreadable": [],
        "version": 1,
        "created_at": body["created_at"],
        "updated_at": body["updated_at"],
    }


@pytest.mark.behaviour("1.3")
def test_the_values_of_a_subscribers_headers_are_never_shown(management: Client) -> None:
    made = management.post(SUBSCRIBERS, {"name": "shop", "headers": {"X-Team": "blue"}})
    read, listed = management.get(f"{SUBSCRIBERS}/shop"), management.get(SUBSCRIBERS)
    assert [made.json()["headers"], read.json()["headers"]] == [{"X-Team": None}] * 2
    assert [item["headers"] for item in listed.json()["items"]] == [{"X-Team": None}]
    assert Subscriber.objects.get().headers == {"X-Team": "blue"}


@pytest.mark.behaviour("1.3")
def test_its_status_is_changed_by_people_only_through_actions(management: Client) -> None:
    factories.subscriber("shop")
    stopped = management.post(f"{SUBSCRIBERS}/shop/inactivate")
    again = management.post(f"{SUBSCRIBERS}/shop/inactivate")
    started = management.post(f"{SUBSCRIBERS}/shop/activate")
    told = [(answer.status_code, answer.json()["status"], answer["ETag"]) for answer in (stopped, again, started)]
    assert told == [(200, "INACTIVE", '"2"'), (200, "INACTIVE", '"2"'), (200, "ACTIVE", '"3"')]
    refused = management.patch(f"{SUBSCRIBERS}/shop", {"status": "INACTIVE"})
    assert invalid_fields(refused) == ["status"]


@pytest.mark.behaviour("1.3", "4.13")
@pytest.mark.parametrize("processing", ["CONCURRENT", "KEYED"])
def test_a_subscriber_may_be_sent_several_at_a_time(processing: str) -> None:
    given = {"processing": processing, "concurrency": 8, "ordering_key": "$$->'Header'->'X-Order'->>0"}
    made = client_of().post(SUBSCRIBERS, {"name": "shop", **given})
    assert (made.status_code, {**made.json(), **given}) == (201, made.json())


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        *(
            ({"max_queued_to_send": number}, "max_queued_to_send")
            for number in (0, -1, 10_001, 2**31, 2**63, "5", 5.0, 5.5, True, None, [5])
        ),
        *(({"max_queued_bytes": number}, "max_queued_bytes") for number in (0, 65_535, 8_388_609, None)),
        *(({"refill_percent": number}, "refill_percent") for number in (-1, 91, 0.4, None)),
        ({"concurrency": 2}, "concurrency"),
        ({"processing": "CONCURRENT", "concurrency": 0}, "concurrency"),
        ({"processing": "CONCURRENT", "concurrency": 1_001}, "concurrency"),
        ({"processing": "CONCURRENT", "concurrency": "8"}, "concurrency"),
        ({"processing": "PARALLEL"}, "processing"),
        ({"processing": "KEYED", "concurrency": 8}, "ordering_key"),
        ({"processing": "KEYED", "ordering_key": "$$->'Body'->'key'"}, "ordering_key"),
        ({"ordering_key": "$$->'Body'->>"}, "ordering_key"),
    ],
)
@pytest.mark.behaviour("1.3")
def test_invalid_numbers_and_ways_of_processing_change_nothing(changes: dict[str, object], at: str) -> None:
    made = factories.subscriber("shop")
    answer = client_of().patch(f"{SUBSCRIBERS}/shop", changes)
    made.refresh_from_db()
    assert invalid_fields(answer) == [at]
    assert (made.max_queued_to_send, made.processing, made.concurrency, made.version) == (500, "SERIAL", 1, 1)


@pytest.mark.behaviour("1.3", "4.13")
def test_serial_implies_a_concurrency_of_one() -> None:
    made = factories.subscriber("shop", processing="CONCURRENT", concurrency=10)
    both = {"processing": "SERIAL", "concurrency": 10}
    assert client_of().patch(f"{SUBSCRIBERS}/shop", both).status_code == 400
    assert client_of().patch(f"{SUBSCRIBERS}/shop", {"processing": "SERIAL"}).status_code == 200
    made.refresh_from_db()
    assert (made.processing, made.concurrency) == ("SERIAL", 1)


def test_a_subscriber_is_deleted_with_its_keys_once_it_has_no_subscriptions() -> None:
    shop, paid = factories.subscriber("shop"), factories.event_type("Order.Paid")
    own, made = client_of(shop), factories.subscription(subscriber=shop, event_type=paid)
    assert problem_of(client_of().delete(f"{SUBSCRIBERS}/shop")) == (409, "still_in_use")
    made.delete()
    assert client_of().delete(f"{SUBSCRIBERS}/shop").status_code == 204
    assert own.get(SUBSCRIBERS).status_code == 401


@pytest.mark.behaviour("1.2")
def test_a_publisher_may_be_limited_to_event_types(management: Client) -> None:
    for name in ("Order.Paid", "Order.Sent"):
        factories.event_type(name)
    body = {"name": "till", "event_types": ["Order.Paid"]}
    made = management.post(PUBLISHERS, body)
    assert (made.status_code, made.json()["event_types"]) == (201, ["Order.Paid"])
    changed = management.patch(f"{PUBLISHERS}/till", {"event_types": ["Order.Sent"]})
    assert (changed.status_code, changed.json()["event_types"], changed["ETag"]) == (200, ["Order.Sent"], '"2"')
    assert management.get(f"{PUBLISHERS}/till").json() == changed.json()
    assert management.post(PUBLISHERS, {"name": "desk"}).json()["event_types"] == []


@pytest.mark.parametrize("given", [{}, {"Order.Paid": 1}, "Order.Paid", 5, None, [5], [None], [["Order.Paid"]]])
@pytest.mark.behaviour("1.2")
def test_anything_but_a_list_of_names_never_lifts_a_limit(given: object) -> None:
    limited = factories.publisher("till", event_types=[factories.event_type("Order.Paid")])
    answer = client_of().patch(f"{PUBLISHERS}/till", {"event_types": given})
    assert {*invalid_fields(answer)} == {"event_types"}
    assert [known.name for known in limited.event_types.all()] == ["Order.Paid"]


def test_an_unknown_event_type_is_refused_and_nothing_stored(management: Client) -> None:
    answer = management.post(PUBLISHERS, {"name": "till", "event_types": ["Nothing"]})
    assert invalid_fields(answer) == ["event_types"]
    assert management.get(PUBLISHERS).json()["items"] == []


def test_a_publisher_is_renamed_unless_the_name_is_taken(management: Client) -> None:
    factories.publisher("till"), factories.publisher("shop")
    taken = management.patch(f"{PUBLISHERS}/till", {"name": "shop"})
    free = management.patch(f"{PUBLISHERS}/till", {"name": "desk"})
    assert (problem_of(taken), free.status_code) == ((409, "name_taken"), 200)


def test_a_publisher_is_deleted_with_its_keys() -> None:
    own = client_of(factories.publisher("till"))
    assert client_of().delete(f"{PUBLISHERS}/till").status_code == 204
    assert own.get(PUBLISHERS).status_code == 401
