"""A key sees its own objects only, also where a body or a query names others."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import orjson
import pytest
from django.db.models.functions import Now
from django.test import Client

from delivery.models import Attempt, Callback, Delivery, Lane, Message, Replay
from subscriptions.models import ApiKey, Subscription
from tests.support import factories
from tests.support.api import Answer, api_document, client_of, publish
from tests.support.mailboxes import pulled_subscription

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

EVERYBODYS = {"event-types", "event-type-file", "retry-policies"}
"""Every key reads them all, and management changes them."""
WITHOUT_OWNER = {"events", "filters", "metrics", "scripts", "senders", "summaries", "summary-runs"}
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
"""Nothing of somebody has come to nothing; the tests of dead letters see to that."""
NOBODY = "nobody"
UNKNOWN: Final = 10**17
REFUSED = {403, 404}
"""A view that serves only publishers refuses other keys at any address, so the refusal reveals nothing."""

NOBODY_ELSE: Final = "nobodyxx"
EVENT: Final = "Order.Paid"
THERE: Final = {"deliveries", "subscriptions"}
"""Where management finds something by such names, so that finding nothing says something."""
OF_EVERYBODY: Final = {
    "cursor",
    "limit",
    "event_type",
    "event_pattern",
    "from",
    "to",
    "hours",
    "header",
    "filter",
    "status",
    "outcome",
    "reason",
}
"""Names in queries that are nobody's own."""

Names = dict[str, object]


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
    delivery = Delivery.objects.create(message=message, subscription=made, line=line, size=2)
    Attempt.objects.create(delivery=delivery, number=1, started_at=delivery.created_at, duration_ms=1)
    Replay.objects.create(subscription=made, selection={"subscriber": made.subscriber_id}, created_by="somebody")
    token = {"token_hash": b"1", "token_sealed": b"1", "expires_at": Now() + timedelta(days=1)}
    Callback.objects.create(
        group_id=1,
        message=message,
        event_type=made.event_type,
        publisher=owner,
        url="https://somebody.example/",
        **token,
    )
    return made


def numbers_of(theirs: Subscription) -> dict[str, int]:
    models = {"messages": Message, "deliveries": Delivery, "replays": Replay, "callbacks": Callback}
    only = {name: model._default_manager.get().pk for name, model in models.items()}
    return {"subscriptions": theirs.pk, "api-keys": ApiKey.objects.get(label="somebody").pk, **only}


def ask(client: Client, method: str, path: str, name: str, number: int, **headers: str) -> Answer:
    """Call the operation on what has that name, or number."""
    address = path.replace("{name}", name).replace("{id}", str(number)).replace("{number}", "1")
    needed = NEEDED.get(path.rpartition("/")[2], "{}")
    return client.generic(
        method.upper(), address, "" if method == "get" else needed, "application/json", headers=headers
    )


def strangers() -> list[Client]:
    return [client_of(factories.publisher()), client_of(factories.subscriber())]


def said(answer: Answer, names: Names | None = None) -> tuple[int, str, bytes]:
    """Return all that an answer says, without the names that its caller knows."""
    body: bytes = answer.content
    for name in map(str, (names or {}).values()):
        body = re.sub(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % re.escape(name).encode(), b"it", body)
    return answer.status_code, answer.get("Content-Type", ""), body


def test_the_walk_meets_every_resource() -> None:
    assert {path.split("/")[3] for _, path in OF_ONE} == RESOURCES - {"dead-letters"}
    assert {path.split("/")[3] for path in LISTS} == LISTED | {"dead-letters"}
    assert {path.split("/")[3] for path in DOCUMENT} == RESOURCES | EVERYBODYS | WITHOUT_OWNER


@pytest.mark.parametrize(("method", "path"), OF_ONE)
def test_records_of_others_do_not_exist(method: str, path: str, somebody: Subscription) -> None:
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
def test_lists_do_not_show_records_of_others(path: str, somebody: Subscription) -> None:
    assert b"somebody" in client_of().get(path).content or path in EMPTY
    for client in strangers():
        answer = client.get(path)
        assert answer.status_code in {200, 403}
        assert b"somebody" not in answer.content


@pytest.mark.parametrize("path", [path for method, path in OPERATIONS if method == "post" and "{" not in path])
def test_only_subscriptions_and_replays_are_created_without_a_management_key(path: str) -> None:
    statuses = [client.post(path, {}).status_code for client in strangers()]
    assert statuses == ([403, 400] if path.endswith(("subscriptions", "replays")) else [403, 403])


def test_a_publisher_and_a_subscriber_read_themselves_and_change_nothing() -> None:
    till, shop = factories.publisher("till"), factories.subscriber("shop")
    for client, path in ((client_of(till), "/api/v1/publishers/till"), (client_of(shop), "/api/v1/subscribers/shop")):
        assert client.get(path).status_code == 200
        assert client.patch(path, {"description": "x"}).status_code == 403
        assert client.delete(path).status_code == 403


NAMED_IN_BODIES: Final[dict[str, dict[str, Any]]] = {
    "subscriptions": {"subscriber": "{name}", "event_type": EVENT, "endpoint": "http://127.0.0.1:9/"},
    "replays": {"subscriber": "{name}"},
    "replays ": {"subscription": "{subscription}"},
    "filters/test": {"message_id": "{message}"},
    "scripts/test": {"message_id": "{message}", "script": "1"},
    "subscriptions/{own}/test-filter": {"message_id": "{message}"},
    "subscriptions/{own}/test-script": {"message_id": "{message}", "script": "1"},
    **{f"mailboxes/{{mailbox}}/{call}": {"receipt": "{receipt}"} for call in ("ack", "nack", "extend")},
    **{f"mailboxes/{{mailbox}}/{call} ": {"receipts": ["{receipt}"]} for call in ("ack", "nack", "extend")},
}
"""Whose bodies name what may be somebody's; a blank tells two of one address apart."""
NAMED_IN_QUERIES: Final[dict[str, tuple[str, ...]]] = {
    "callbacks": ("message",),
    "dead-letters": ("subscriber", "publisher", "idempotency_key"),
    "deliveries": ("subscriber", "subscription", "message", "group", "publisher", "idempotency_key"),
    "messages": ("subscriber", "publisher", "idempotency_key"),
    "subscriptions": ("subscriber",),
}
"""Which queries name what may be somebody's, and not everybody's."""
NAMES: Final = ("name", "subscriber", "publisher", "idempotency_key")


@pytest.fixture
def theirs() -> Names:
    """Return what somebody else has, by what it is called here."""
    event_type = factories.event_type(EVENT)
    wanted = pulled_subscription(factories.subscriber("somebody"), event_type)
    publish(client_of(factories.publisher("somebody")), b"{}", event=EVENT, Idempotency_Key="somebody")
    (handed,) = client_of(wanted.subscriber).post("/api/v1/mailboxes/somebody/next").json()["messages"]
    delivery = Delivery.objects.get()
    numbers = {"subscription": wanted.pk, "message": delivery.message_id, "group": 1}
    names = dict.fromkeys(NAMES, "somebody")
    return {**names, "receipt": handed["receipt"], **numbers}


@pytest.fixture
def own(theirs: Names) -> Subscription:
    """Return the subscription of the one who asks, who has something too, made before anything else was published."""
    return pulled_subscription(factories.subscriber("shop"), factories.event_type("Order.Sent"))


def nobodys(theirs: Names) -> Names:
    receipt = str(theirs["receipt"])
    unknown: Names = {name: UNKNOWN for name, value in theirs.items() if isinstance(value, int)}
    unknown |= dict.fromkeys(NAMES, NOBODY_ELSE)
    return {**theirs, **unknown, "receipt": receipt[:-6] + receipt[-6:].swapcase()}


def alike(asked: Callable[[Names], Answer], theirs: Names) -> int:
    """Ask for what is theirs and for what is nobody's; return the status of both, which have to be the same answer."""
    unknown = nobodys(theirs)
    first, second = said(asked(theirs), theirs), said(asked(unknown), unknown)
    assert first == second
    return first[0]


def listed(client: Client, path: str, name: str, names: Names) -> Answer:
    """Return the list narrowed by a name."""
    return client.get(f"/api/v1/{path}", {name: str(names[name])})


def filled(given: Any, names: Names) -> Any:
    """Return JSON in which each `{name}` is what it stands for."""
    if isinstance(given, dict):
        return {name: filled(value, names) for name, value in given.items()}
    if isinstance(given, list):
        return [filled(value, names) for value in given]
    return names.get(given[1:-1], given) if given.startswith("{") else given


@pytest.mark.parametrize("path", NAMED_IN_BODIES)
def test_a_body_naming_another_owner_is_like_an_unknown_name(path: str, theirs: Names, own: Subscription) -> None:
    client, before = client_of(own.subscriber), Subscription.objects.count()
    address = f"/api/v1/{path.strip()}".replace("{own}", str(own.pk)).replace("{mailbox}", "shop")

    def asked(names: Names) -> Answer:
        return client.post(address, orjson.dumps(filled(NAMED_IN_BODIES[path], names)))

    status = alike(asked, theirs)
    assert status in {400, 404} or "receipts" in NAMED_IN_BODIES[path]
    assert (Subscription.objects.count(), Delivery.objects.get().status) == (before, "IN_FLIGHT")


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in NAMED_IN_QUERIES.items() for name in names])
def test_a_query_naming_others_is_like_unknown_names(path: str, name: str, theirs: Names, own: Subscription) -> None:
    for client in (client_of(own.subscriber), client_of(factories.publisher())):
        status = alike(partial(listed, client, path, name), theirs)
        assert status in {200, 403}
        if status == 200:
            assert listed(client, path, name, theirs).json()["items"] == []
    if path in THERE and name != "group":
        assert listed(client_of(), path, name, theirs).json()["items"] != []


def test_every_name_in_a_query_is_in_the_table() -> None:
    asked = {
        (path.removeprefix("/api/v1/"), parameter["name"])
        for path, operations in DOCUMENT.items()
        for parameter in operations.get("get", {}).get("parameters", ())
        if parameter["in"] == "query" and "enum" not in str(parameter["schema"]) and "$ref" not in parameter["schema"]
    }
    for_management = {
        "api-keys",
        "event-type-file",
        "metrics",
        "summaries/{name}",
        "summaries/{name}.{suffix}",
        "summary-runs",
    }
    own = {(path, name) for path, name in asked if name not in OF_EVERYBODY and path not in for_management}
    assert own == {(path, name) for path, names in NAMED_IN_QUERIES.items() for name in names}


@pytest.mark.parametrize("path", ["subscriptions", "deliveries", "subscribers"])
def test_a_cursor_of_others_shows_own_objects_only(path: str, theirs: Names, own: Subscription) -> None:
    for _ in range(2):
        another = pulled_subscription(factories.subscriber(), factories.event_type())
        publish(client_of(), b"{}", event=another.event_type.name if another.event_type else "")
    management = client_of().get(f"/api/v1/{path}", {"limit": "1"}).json()
    cursor = management["next"].partition("cursor=")[2].partition("&")[0]
    answer = client_of(own.subscriber).get(f"/api/v1/{path}?cursor={cursor}")
    shown = {one.get("subscriber", one.get("name")) for one in answer.json()["items"]}
    assert (answer.status_code, shown <= {"shop"}) == (200, True)


def test_no_key_can_tell_a_destination_of_others_from_an_unknown_one(theirs: Names, own: Subscription) -> None:
    client = client_of(own.subscriber)
    statuses = [
        publish(client, b"{}", event=EVENT, Broker_Destination=name).status_code for name in ("somebody", NOBODY_ELSE)
    ]
    assert (statuses, Message.objects.count()) == ([403, 403], 1)
