"""A key sees its own objects only; what belongs to somebody else does not exist for it."""

from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client

from delivery.maintenance.partitions import today
from delivery.models import Callback, Delivery, Lane, Message, Replay
from subscriptions.models import ApiKey, Publisher, Subscription
from tests import factories
from tests.clients import Answer, api_document, client_of

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

EVERYBODYS = {"event-types", "event-type-file", "retry-policies"}
"""Every key reads them all, and management changes them."""
WITHOUT_OWNER = {"events", "filters", "scripts", "senders", "summaries", "summary-runs"}
"""Nothing that is kept of somebody stands there, or for management alone."""
LISTED = {"publishers", "subscribers", "subscriptions", "api-keys", "messages", "deliveries", "replays", "callbacks"}
RESOURCES = {*LISTED, "mailboxes", "dead-letters"}
DOCUMENT = api_document()["paths"]
OPERATIONS = [
    (method, path) for path, operations in DOCUMENT.items() for method in operations if path.split("/")[3] in RESOURCES
]
OF_ONE = [(method, path) for method, path in OPERATIONS if "{" in path and "{token}" not in path]
NEEDED = {
    "test-filter": '{"body": "1"}',
    "test-script": '{"body": "1", "script": "1"}',
    **dict.fromkeys(("ack", "nack", "extend"), '{"receipts": ["some"]}'),
}
LISTS = [path for method, path in OPERATIONS if "{" not in path and method == "get"]
EMPTY = {"/api/v1/dead-letters", "/api/v1/dead-letters/counts"}
"""Nothing of somebody has come to nothing; a test of its own sees to that."""
NOBODY = "nobody"
UNKNOWN = 10**17
REFUSED = {403, 404}
"""A view that serves publishers only, say, refuses other keys whatever the address: that tells nothing."""


@pytest.fixture
def somebody() -> Subscription:
    """Return a subscription of somebody else, who also has a publisher and keys."""
    made = factories.subscription(factories.subscriber("somebody"), factories.event_type("Order.Paid"))
    factories.api_key(made.subscriber, label="somebody")
    owner = factories.publisher("somebody")
    message = Message.objects.create(
        publisher=owner, event_type=made.event_type, body=b"{}", size=2, content_type="", outcome="ROUTED"
    )
    line = made.subscriber.lines.get(lane=Lane.MAIN)
    Delivery.objects.create(message=message, subscription=made, line=line, size=2)
    Replay.objects.create(subscription=made, selection={"subscriber": made.subscriber_id}, created_by="somebody")
    Callback.objects.create(
        group_id=1,
        message=message,
        event_type=made.event_type,
        publisher=owner,
        url="https://somebody.example/",
        token_hash=b"1",
        token_sealed=b"1",
        expires_at=Now() + timedelta(days=1),
    )
    return made


def numbers_of(theirs: Subscription) -> dict[str, int]:
    return {
        "subscriptions": theirs.pk,
        "api-keys": ApiKey.objects.get(label="somebody").pk,
        "messages": Message.objects.get().pk,
        "deliveries": Delivery.objects.get().pk,
        "replays": Replay.objects.get().pk,
        "callbacks": Callback.objects.get().pk,
    }


def ask(client: Client, method: str, path: str, name: str, number: int, **headers: str) -> Answer:
    """Call the operation on what has that name, or number."""
    address = path.replace("{name}", name).replace("{id}", str(number))
    needed = NEEDED.get(path.rpartition("/")[2], "{}")
    return client.generic(
        method.upper(), address, "" if method == "get" else needed, "application/json", headers=headers
    )


def strangers() -> list[Client]:
    return [client_of(factories.publisher()), client_of(factories.subscriber())]


def said(answer: Answer) -> tuple[int, str, bytes]:
    """Return all that an answer says."""
    return answer.status_code, answer.get("Content-Type", ""), answer.content


def test_the_walk_meets_every_resource() -> None:
    assert {path.split("/")[3] for _, path in OF_ONE} == RESOURCES - {"dead-letters"}
    assert {path.split("/")[3] for path in LISTS} == LISTED | {"dead-letters"}
    assert {path.split("/")[3] for path in DOCUMENT} == RESOURCES | EVERYBODYS | WITHOUT_OWNER


@pytest.mark.parametrize(("method", "path"), OF_ONE)
def test_what_belongs_to_somebody_else_is_as_if_it_were_not_there(
    method: str, path: str, somebody: Subscription
) -> None:
    number = numbers_of(somebody).get(path.split("/")[3], 0)
    for client in strangers():
        for headers in ({}, {"If-Match": '"1"'}, {"If-Match": '"99"'}):
            theirs = ask(client, method, path, "somebody", number, **headers)
            nobodys = ask(client, method, path, NOBODY, UNKNOWN, **headers)
            assert said(theirs) == said(nobodys)
            assert theirs.status_code in REFUSED
    assert ask(Client(), method, path, "somebody", number).status_code == 401
    assert ask(client_of(), method, path, "somebody", number).status_code in {200, 201, 202, 204, 409}


@pytest.mark.parametrize("path", LISTS)
def test_lists_do_not_show_what_belongs_to_somebody_else(path: str, somebody: Subscription) -> None:
    assert b"somebody" in client_of().get(path).content or path in EMPTY
    for client in strangers():
        answer = client.get(path)
        assert answer.status_code in {200, 403}
        assert b"somebody" not in answer.content


def test_what_came_to_nothing_is_told_to_whom_it_was_for(somebody: Subscription) -> None:
    ended = {"status": "REJECTED", "finished_at": Now(), "closed_on": today()}
    Delivery.objects.update(status="IN_FLIGHT")
    Delivery.objects.update(**ended)
    lists = ["/api/v1/dead-letters", "/api/v1/dead-letters/counts"]
    for client, seen in [(client_of(somebody.subscriber), 1), *((one, 0) for one in strangers())]:
        listed, counts = (client.get(path) for path in lists)
        assert listed.status_code == counts.status_code
        if listed.status_code != 403:
            assert (len(listed.json()["items"]), sum(counts.json().values())) == (seen, seen)


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "post" and "{" not in path])
def test_only_subscriptions_and_replays_are_created_without_a_management_key(path: str) -> None:
    statuses = [client.post(path, {}, content_type="application/json").status_code for client in strangers()]
    assert statuses == ([403, 400] if path.endswith(("subscriptions", "replays")) else [403, 403])


def test_a_publisher_and_a_subscriber_read_themselves_and_change_nothing() -> None:
    till, shop = factories.publisher("till"), factories.subscriber("shop")
    for client, path in ((client_of(till), "/api/v1/publishers/till"), (client_of(shop), "/api/v1/subscribers/shop")):
        assert client.get(path).status_code == 200
        assert client.patch(path, {"description": "x"}, content_type="application/json").status_code == 403
        assert client.delete(path).status_code == 403


def test_the_publisher_is_told_the_kind_of_failure_only(somebody: Subscription) -> None:
    delivery, why = Delivery.objects.get(), "no answer: Could not resolve host: db-7.internal.example"
    Delivery.objects.update(reason=why)

    def told(client: Client) -> str:
        message = client.get(f"/api/v1/messages/{delivery.message_id}").json()
        return str(message["deliveries"][0]["reason"])

    assert told(client_of(Publisher.objects.get())) == "no answer: the name of its host was not resolved"
    assert told(client_of()) == why
    assert client_of(somebody.subscriber).get(f"/api/v1/deliveries/{delivery.pk}").json()["reason"] == why
