"""What belongs to somebody else is not there either where a body, a query, a cursor or a receipt names it."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import orjson
import pytest
from django.test import Client

from delivery.models import Delivery, Message
from subscriptions.models import Subscriber, Subscription
from tests import factories
from tests.clients import Answer, api_document, client_of
from tests.mailboxes import pulled_subscription
from tests.publishing import JSON, publish

pytestmark = [pytest.mark.django_db, pytest.mark.behaviour("1.2")]

UNKNOWN: Final = 10**17
NOBODY: Final = "nobodyxx"
DOCUMENT: Final = api_document()
EVENT: Final = "Order.Paid"

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
    "dead-letters": ("subscriber",),
    "deliveries": ("subscriber", "subscription", "message", "group"),
    "subscriptions": ("subscriber",),
}
"""Which queries name what may be somebody's, and not everybody's."""
THERE: Final = {"deliveries", "subscriptions"}
"""Where management finds something by such names, so that finding nothing says something."""
OF_EVERYBODY: Final = {"cursor", "limit", "event_type", "event_pattern"}
"""Names in queries that are nobody's own."""

Names = dict[str, object]


@pytest.fixture
def theirs() -> Names:
    """Return what somebody else has, by what it is called here."""
    event_type = factories.event_type(EVENT)
    wanted = pulled_subscription(factories.subscriber("somebody"), event_type)
    publish(client_of(factories.publisher("somebody")), b"{}", event=EVENT)
    (handed,) = (
        client_of(wanted.subscriber).post("/api/v1/mailboxes/somebody/next", content_type=JSON).json()["messages"]
    )
    delivery = Delivery.objects.get()
    return {
        "name": "somebody",
        "subscriber": "somebody",
        "subscription": wanted.pk,
        "message": delivery.message_id,
        "group": 1,
        "receipt": handed["receipt"],
    }


@pytest.fixture
def own(theirs: Names) -> Subscription:
    """Return the subscription of the one who asks, who has something too, made before anything else was published."""
    return pulled_subscription(factories.subscriber("shop"), factories.event_type("Order.Sent"))


def nobodys(theirs: Names) -> Names:
    receipt = str(theirs["receipt"])
    unknown = {name: UNKNOWN for name, value in theirs.items() if isinstance(value, int)}
    return {
        **theirs,
        **unknown,
        "name": NOBODY,
        "subscriber": NOBODY,
        "receipt": receipt[:-6] + receipt[-6:].swapcase(),
    }


def said(answer: Answer, names: Names) -> tuple[int, str, bytes]:
    """Return all that an answer says, without the names that its caller knows."""
    body: bytes = answer.content
    for name in map(str, names.values()):
        body = re.sub(rb"(?<![0-9A-Za-z])%b(?![0-9A-Za-z])" % re.escape(name).encode(), b"it", body)
    return answer.status_code, answer.get("Content-Type", ""), body


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
def test_a_body_that_names_it(path: str, theirs: Names, own: Subscription) -> None:
    client, before = client_of(own.subscriber), Subscription.objects.count()
    address = f"/api/v1/{path.strip()}".replace("{own}", str(own.pk)).replace("{mailbox}", "shop")

    def asked(names: Names) -> Answer:
        return client.post(address, orjson.dumps(filled(NAMED_IN_BODIES[path], names)), content_type=JSON)

    status = alike(asked, theirs)
    assert status in {400, 404} or "receipts" in NAMED_IN_BODIES[path]
    assert (Subscription.objects.count(), Delivery.objects.get().status) == (before, "IN_FLIGHT")


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in NAMED_IN_QUERIES.items() for name in names])
def test_a_query_that_names_it(path: str, name: str, theirs: Names, own: Subscription) -> None:
    for client in (client_of(own.subscriber), client_of(factories.publisher())):
        status = alike(partial(listed, client, path, name), theirs)
        assert status in {200, 403}
        if status == 200:
            assert listed(client, path, name, theirs).json()["items"] == []
    if path in THERE and name != "group":
        assert listed(client_of(), path, name, theirs).json()["items"] != []


def test_every_name_in_a_query_stands_here() -> None:
    asked = {
        (path.removeprefix("/api/v1/"), parameter["name"])
        for path, operations in DOCUMENT["paths"].items()
        for parameter in operations.get("get", {}).get("parameters", ())
        if parameter["in"] == "query" and "enum" not in str(parameter["schema"]) and "$ref" not in parameter["schema"]
    }
    for_management = {"api-keys", "event-type-file", "summaries/{name}", "summaries/{name}.{suffix}", "summary-runs"}
    own = {(path, name) for path, name in asked if name not in OF_EVERYBODY and path not in for_management}
    assert own == {(path, name) for path, names in NAMED_IN_QUERIES.items() for name in names}


@pytest.mark.parametrize("path", ["subscriptions", "deliveries", "subscribers"])
def test_a_cursor_of_theirs_leads_to_nothing_of_theirs(path: str, theirs: Names, own: Subscription) -> None:
    for _ in range(2):
        another = pulled_subscription(factories.subscriber(), factories.event_type())
        publish(client_of(), b"{}", event=another.event_type.name if another.event_type else "")
    management = client_of().get(f"/api/v1/{path}", {"limit": "1"}).json()
    cursor = management["next"].partition("cursor=")[2].partition("&")[0]
    answer = client_of(own.subscriber).get(f"/api/v1/{path}?cursor={cursor}")
    shown = {one.get("subscriber", one.get("name")) for one in answer.json()["items"]}
    assert (answer.status_code, shown <= {"shop"}) == (200, True)


def test_a_message_of_theirs_is_not_to_be_tried_on_but_by_them(theirs: Names, own: Subscription) -> None:
    asked = {"message_id": theirs["message"]}
    tried = [
        client_of(one).post("/api/v1/filters/test", asked, content_type=JSON).status_code
        for one in (own.subscriber, Subscriber.objects.get(name="somebody"), None)
    ]
    assert tried == [404, 200, 200]


def test_a_destination_that_is_theirs_is_told_from_nobodys_by_no_key(theirs: Names, own: Subscription) -> None:
    client = client_of(own.subscriber)
    statuses = [
        publish(client, b"{}", event=EVENT, Broker_Destination=name).status_code for name in ("somebody", NOBODY)
    ]
    assert (statuses, Message.objects.count()) == ([403, 403], 1)
