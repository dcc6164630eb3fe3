"""The broker's own event types: there from the start, as they are, and for management to subscribe to."""

import pytest
from django.test import Client

from delivery.models import Message
from subscriptions.import_export import RefusedEntries
from subscriptions.import_export.event_types_file import import_event_types
from subscriptions.models import EventType, Subscription
from subscriptions.presets import OWN_EVENT_TYPES
from tests import factories
from tests.clients import client_of
from tests.publishing import problem, publish

pytestmark = pytest.mark.django_db

TYPES = "/api/v1/event-types"
SUBSCRIPTIONS = "/api/v1/subscriptions"
JSON = "application/json"
REJECTED = "Broker.Delivery.Rejected"


def wanted(**fields: object) -> dict[str, object]:
    return {"subscriber": "ops", "endpoint": "https://ops.example/hook", **fields}


@pytest.mark.behaviour("5.7")
def test_they_are_there_and_stay_as_they_are() -> None:
    management = client_of()
    for name in (f"Broker.{one}" for one in OWN_EVENT_TYPES):
        read = management.get(f"{TYPES}/{name}")
        assert (read.status_code, read.json()["kind"]) == (200, "TOPIC")
        changed = management.patch(f"{TYPES}/{name}", {"description": "mine"}, content_type=JSON)
        assert (changed.status_code, changed.json()["code"]) == (409, "preset")
        assert changed.json()["detail"] == f"{name} came installed and stays as it is."
        assert management.delete(f"{TYPES}/{name}").status_code == 409
        assert EventType.objects.get(name=name).version == 1


@pytest.mark.behaviour("5.7")
def test_nobody_makes_another() -> None:
    answer = client_of().post(TYPES, {"name": "Broker.Mine"}, content_type=JSON)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "#/name")
    with pytest.raises(RefusedEntries):
        import_event_types(b"event_types: [{name: Broker.Mine}]", dry_run=False)
    assert client_of().post(TYPES, {"name": "Brokers.Mine"}, content_type=JSON).status_code == 201


def test_in_the_admin_they_can_be_looked_at_only(admin: Client) -> None:
    page = f"/admin/subscriptions/eventtype/{EventType.objects.get(name=REJECTED).pk}"
    assert b'name="description"' not in admin.get(f"{page}/change/").content
    assert admin.post(f"{page}/change/", {"description": "mine"}).status_code == 403
    assert admin.post(f"{page}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize(
    "events", [{"event_type": REJECTED}, {"event_pattern": "Broker.*"}, {"event_pattern": "Broker.Delivery.*"}]
)
@pytest.mark.behaviour("1.2", "5.7")
def test_subscribing_to_them_takes_management(events: dict[str, str]) -> None:
    own = client_of(factories.subscriber("ops"))
    refused = own.post(SUBSCRIPTIONS, wanted(**events), content_type=JSON)
    assert (refused.status_code, refused.json()["code"], Subscription.objects.count()) == (403, "forbidden", 0)
    assert client_of().post(SUBSCRIPTIONS, wanted(**events), content_type=JSON).status_code == 201


@pytest.mark.behaviour("1.2")
def test_for_everything_else_a_subscribers_key_is_enough() -> None:
    own = client_of(factories.subscriber("ops"))
    factories.event_type("Brokers.Order")
    for events in ({"event_type": "Brokers.Order"}, {"event_pattern": "*"}, {"event_pattern": "Brokers.*"}):
        assert own.post(SUBSCRIPTIONS, wanted(**events), content_type=JSON).status_code == 201


@pytest.mark.behaviour("5.7")
def test_nobody_but_the_broker_publishes_them() -> None:
    limited = factories.publisher(event_types=[EventType.objects.get(name=REJECTED)])
    for owner in (None, factories.publisher(), limited):
        assert problem(publish(client_of(owner), event=REJECTED)) == (403, "event_type_not_allowed")
    assert Message.objects.count() == 0
