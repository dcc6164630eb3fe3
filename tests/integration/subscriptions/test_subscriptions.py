"""Subscriptions over the API: fields, policies, rates, PULL mode."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone

from delivery.models import Delivery
from subscriptions.credentials.tokens import key_of
from subscriptions.models import DeliveryMode, EventKind, PausedBy, Status, StatusChange, Subscriber, Subscription
from tests.support import factories
from tests.support.api import client_of, invalid_fields, problem_of
from tests.support.mailboxes import pulled_subscription, switch_delivery_mode

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"

PUSH, PULL = DeliveryMode.PUSH, DeliveryMode.PULL
PAUSED = {"paused_since": timezone.now(), "paused_by": PausedBy.POLICY, "paused_reason": "suspended: answered 503"}
SCRIPT = "$outmessage = $inmessage"
URL = "https://shop.example/hook"


WAYS = {
    "retry_policy": "Workfront",
    "rate_limit": 2.5,
    "timeout_seconds": 60,
    "output": "CLOUDEVENTS_BINARY",
    "monitor_url": "https://shop.example/health",
}


def new_mailbox(**fields: object) -> dict[str, object]:
    return {"subscriber": "shop", "event_type": "Order.Paid", **fields}


def new(**fields: object) -> dict[str, object]:
    return new_mailbox(**{"endpoint": URL, **fields})


@pytest.fixture(autouse=True)
def _shop_and_order_paid() -> None:
    factories.subscriber("shop")
    factories.event_type("Order.Paid")


@pytest.mark.behaviour("1.4")
def test_a_subscription_joins_a_subscriber_to_an_event_type(management: Client) -> None:
    given = new(headers={"X-Team": "blue"}, header_filter_string=" exactly so ", position=3, status="INACTIVE")
    made = management.post(ROOT, given)
    body = made.json()
    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{ROOT}/{body['id']}", '"1"')
    assert {name: body[name] for name in given} == given | {"headers": {"X-Team": None}}
    assert len(key_of(body["signing_secret"])) == 32
    read = management.get(made["Location"]).json()
    assert read == {name: value for name, value in body.items() if name != "signing_secret"}


@pytest.mark.behaviour("1.4", "5.1")
def test_a_new_subscription_is_active_unfiltered_first_and_without_limits() -> None:
    body = client_of().post(ROOT, new()).json()
    fields = ("status", "headers", "header_filter_string", "position", *WAYS)
    assert [body[name] for name in fields] == ["ACTIVE", {}, "", 0, None, None, 15, "AS_PUBLISHED", ""]


@pytest.mark.parametrize("end", ["subscriber", "event_type"])
@pytest.mark.behaviour("1.4")
def test_both_ends_of_a_subscription_are_fixed_in_the_api_and_in_the_database(end: str) -> None:
    made, other = factories.subscription(), factories.subscription()
    assert invalid_fields(client_of().patch(f"{ROOT}/{made.pk}", {end: new()[end]})) == [end]
    with pytest.raises(IntegrityError), transaction.atomic():
        Subscription.objects.filter(pk=made.pk).update(**{end: getattr(other, end)})


@pytest.mark.behaviour("1.4", "1.5")
def test_endpoint_headers_filter_and_position_may_change(management: Client) -> None:
    address = management.post(ROOT, new())["Location"]
    changes = {"endpoint": "PUT:http://b.example/", "headers": {"A": "1"}, "header_filter_string": "x", "position": 1}
    answer = management.patch(address, changes)
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')
    assert {name: answer.json()[name] for name in changes} == changes | {"headers": {"A": None}}
    assert Subscription.objects.get().headers == {"A": "1"}
    assert management.get(address).json() == answer.json()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ["a", "b", "c"]),
        ("?subscriber=shop", ["a", "b"]),
        ("?event_type=Order.Paid", ["a", "c"]),
        ("?status=INACTIVE", ["c"]),
        ("?subscriber=shop&event_type=Order.Paid&status=ACTIVE", ["a"]),
        ("?subscriber=nobody", []),
    ],
)
def test_the_list_is_narrowed_by_owner_type_and_status(management: Client, query: str, found: list[str]) -> None:
    factories.subscriber("desk"), factories.event_type("Order.Sent")
    for fields in (
        {"header_filter_string": "a"},
        {"header_filter_string": "b", "event_type": "Order.Sent"},
        {"header_filter_string": "c", "subscriber": "desk", "status": "INACTIVE"},
    ):
        management.post(ROOT, new(**fields))
    items = management.get(ROOT + query).json()["items"]
    assert [item["header_filter_string"] for item in items] == found


@pytest.mark.behaviour("1.8")
def test_a_subscription_with_unfinished_deliveries_is_not_deleted() -> None:
    client, made = client_of(), factories.subscription()
    pending = Delivery.objects.create(subscription=made, size=2)
    answer = client.delete(f"{ROOT}/{made.pk}")
    assert problem_of(answer) == (409, "still_in_use")
    assert "cancel them" in answer.json()["detail"]
    assert client.get(f"{ROOT}/{made.pk}").status_code == 200
    pending.delete()
    assert client.delete(f"{ROOT}/{made.pk}").status_code == 204
    assert client.get(f"{ROOT}/{made.pk}").status_code == 404


@pytest.mark.behaviour("1.2", "1.4")
def test_a_subscriber_configures_its_own_subscriptions() -> None:
    own = client_of(factories.subscriber("desk"))
    made = own.post(ROOT, new(subscriber="desk"))
    address = made["Location"]
    answers = [
        made,
        own.get(address),
        own.patch(address, {"endpoint": "http://b.example/"}),
        own.post(f"{address}/inactivate"),
        own.post(f"{address}/activate"),
        own.post(f"{address}/rotate-secret"),
        own.delete(address),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200, 200, 204]
    assert [answer.json()["status"] for answer in answers[:-1]] == [*["ACTIVE"] * 3, "INACTIVE", *["ACTIVE"] * 2]


@pytest.mark.parametrize(
    ("fields", "pointer", "detail"),
    [
        ({"status": "ON"}, "#/status", '"ON" is not one of ACTIVE, INACTIVE.'),
        (
            {"event_type": "Shop.Order.*"},
            "#/event_type",
            "This is not the name of an event type; give patterns as event_pattern.",
        ),
    ],
)
def test_an_error_says_which_values_are_accepted(fields: dict[str, object], pointer: str, detail: str) -> None:
    (error,) = client_of().post(ROOT, new(**fields)).json()["errors"]
    assert (error["pointer"], error["detail"]) == (pointer, detail)


@pytest.mark.parametrize("address", ["subscriptions", "subscribers"])
def test_the_error_for_a_status_names_its_actions(address: str) -> None:
    made = factories.subscription()
    name = str(made.pk) if address == "subscriptions" else made.subscriber.name
    answer = client_of().patch(f"/api/v1/{address}/{name}", {"status": "INACTIVE"})
    (error,) = answer.json()["errors"]
    assert error["detail"] == "This cannot be set here: POST …/activate or …/inactivate."


@pytest.mark.parametrize(
    ("address", "field"), [("subscriptions", "status"), ("deliveries", "status"), ("messages", "outcome")]
)
def test_the_error_of_a_filter_lists_its_choices(address: str, field: str) -> None:
    (error,) = client_of().get(f"/api/v1/{address}", {field: "ON"}).json()["errors"]
    assert (error["parameter"], error["detail"].startswith('"ON" is not one of ')) == (field, True)


@pytest.mark.behaviour("1.4", "4.17", "5.1")
def test_policy_rate_output_and_monitor_are_set_and_changed(management: Client) -> None:
    made = management.post(ROOT, new(**WAYS))
    assert (made.status_code, {**made.json(), **WAYS}) == (201, made.json())
    nothing: dict[str, object] = {"retry_policy": None, "rate_limit": None, "output": "AS_PUBLISHED", "monitor_url": ""}
    nothing["timeout_seconds"] = 15
    changed = management.patch(made["Location"], nothing)
    assert (changed.status_code, changed["ETag"], {**changed.json(), **nothing}) == (200, '"2"', changed.json())


@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.SYNC])
@pytest.mark.parametrize("way", ["retry_policy", "rate_limit", "monitor_url"])
@pytest.mark.behaviour("5.1")
def test_only_topic_subscriptions_have_policy_rate_and_monitor(kind: EventKind, way: str) -> None:
    factories.event_type("Order.Asked", kind)
    refused = client_of().post(ROOT, new(event_type="Order.Asked", **{way: WAYS[way]}))
    assert invalid_fields(refused) == [way]
    made = client_of().post(ROOT, new(event_type="Order.Asked"))
    assert invalid_fields(client_of().patch(made["Location"], {way: WAYS[way]})) == [way]
    assert Subscription.objects.values_list(way, flat=True).get() in {None, ""}


@pytest.mark.behaviour("4.17")
@pytest.mark.parametrize(("kind", "named"), [(EventKind.QUEUE, None), (EventKind.SYNC, ["timeout_seconds"])])
def test_calls_have_a_time_out_of_their_own(kind: EventKind, named: list[str] | None) -> None:
    factories.event_type("Order.Asked", kind)
    made = client_of().post(ROOT, new(event_type="Order.Asked", timeout_seconds=60))
    assert (invalid_fields(made) if named else made.json()["timeout_seconds"]) == (named or 60)


@pytest.mark.behaviour("5.1")
def test_a_subscription_to_a_pattern_has_policy_rate_and_monitor_too() -> None:
    fields = {"event_type": None, "event_pattern": "Order.*", **WAYS}
    assert client_of().post(ROOT, new(**fields)).status_code == 201


def test_a_scripted_subscription_has_no_output() -> None:
    factories.event_type("Order.Asked", EventKind.SYNC)
    fields = {"event_type": "Order.Asked", "endpoint": "webr://here", "script": "$outmessage = 1"}
    refused = client_of().post(ROOT, new(**fields, output="CLOUDEVENTS_BINARY"))
    assert invalid_fields(refused) == ["output"]
    assert client_of().post(ROOT, new(**fields)).status_code == 201


@pytest.mark.parametrize(
    ("way", "value"),
    [
        ("retry_policy", "Nobodys"),
        ("retry_policy", 1),
        ("rate_limit", 0),
        ("rate_limit", -1),
        ("rate_limit", 10_001),
        ("rate_limit", "5"),
        ("rate_limit", True),
        ("timeout_seconds", 0),
        ("timeout_seconds", 61),
        ("timeout_seconds", 2.5),
        ("timeout_seconds", None),
        ("output", "XML"),
        ("output", None),
        ("monitor_url", "shop.example"),
        ("monitor_url", "GET:https://shop.example/"),
        ("monitor_url", "https://user:secret@shop.example/"),
        ("monitor_url", None),
    ],
)
@pytest.mark.behaviour("1.4")
def test_an_invalid_policy_rate_output_or_monitor_is_refused_at_its_field(way: str, value: object) -> None:
    assert invalid_fields(client_of().post(ROOT, new(**{way: value}))) == [way]
    assert Subscription.objects.count() == 0


@pytest.mark.parametrize("field", ["paused_since", "paused_by", "paused_reason", "half_open", "probe_due_at"])
def test_a_pause_is_shown_and_not_set(field: str) -> None:
    made = client_of().post(ROOT, new())
    assert made.json()[field] in {None, "", False}
    assert invalid_fields(client_of().patch(made["Location"], {field: None})) == [field]


@pytest.mark.behaviour("9.1", "1.6")
@pytest.mark.parametrize("mode", DeliveryMode)
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize(
    ("pause", "is_paused", "is_tried"),
    [({}, False, False), (PAUSED, True, False), (PAUSED | {"half_open": True}, True, True)],
)
def test_a_subscription_is_either_sending_or_fetchable(
    mode: DeliveryMode, status: Status, pause: dict[str, Any], is_paused: bool, is_tried: bool
) -> None:
    made = factories.subscription()
    Subscription.objects.filter(pk=made.pk).update(delivery_mode=mode, status=status, **pause)
    made.refresh_from_db()
    is_active = status == Status.ACTIVE
    assert made.is_sending == (mode == PUSH and is_active and (not is_paused or is_tried))
    assert made.is_fetchable == (mode == PULL and is_active and not is_paused)


@pytest.mark.behaviour("9.1")
def test_push_is_the_default_and_pull_needs_no_endpoint(management: Client) -> None:
    pushed = management.post(ROOT, new_mailbox(endpoint=URL))
    fetched = management.post(ROOT, new_mailbox(delivery_mode="PULL", event_pattern="*", event_type=None))
    kept = management.post(ROOT, new_mailbox(delivery_mode="PULL", endpoint=URL))
    for made, mode, url in ((pushed, "PUSH", URL), (fetched, "PULL", ""), (kept, "PULL", URL)):
        assert (made.status_code, made.json()["delivery_mode"], made.json()["endpoint"]) == (201, mode, url)
    listed = management.get(f"{ROOT}?delivery_mode=PULL").json()["items"]
    assert {one["id"] for one in listed} == {fetched.json()["id"], kept.json()["id"]}


@pytest.mark.behaviour("9.1", "5.1")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"retry_policy": "Workfront"}, ["retry_policy"]),
        ({"rate_limit": 2.5}, ["rate_limit"]),
        ({"monitor_url": "https://shop.example/health"}, ["monitor_url"]),
        ({"timeout_seconds": 14}, ["timeout_seconds"]),
        ({"script": SCRIPT}, ["script"]),
        ({"script": SCRIPT, "rate_limit": 1}, ["rate_limit", "script"]),
        ({"endpoint": "ftp://shop.example/"}, ["endpoint"]),
        ({"delivery_mode": "POLL"}, ["delivery_mode"]),
        ({"delivery_mode": "PUSH"}, ["endpoint"]),
        ({"delivery_mode": "PUSH", "endpoint": ""}, ["endpoint"]),
    ],
)
def test_fields_of_push_are_refused_with_pull(fields: dict[str, Any], named: list[str]) -> None:
    refused = client_of().post(ROOT, new_mailbox(**{"delivery_mode": "PULL", **fields}))
    assert (invalid_fields(refused), Subscription.objects.count()) == (named, 0)


@pytest.mark.behaviour("9.1")
@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.SYNC])
def test_only_topic_events_are_fetched(kind: EventKind) -> None:
    factories.event_type("Job.Due", kind)
    refused = client_of().post(ROOT, new_mailbox(event_type="Job.Due", delivery_mode="PULL"))
    assert invalid_fields(refused) == ["delivery_mode"]


@pytest.mark.behaviour("9.8")
def test_a_switch_to_pull_clears_fields_of_push_in_the_same_change(management: Client) -> None:
    made = management.post(ROOT, new_mailbox(endpoint="https://shop.example/hook", script=SCRIPT, rate_limit=2))
    where = made["Location"]
    assert invalid_fields(management.patch(where, {"delivery_mode": "PULL"})) == ["rate_limit", "script"]
    change = {"delivery_mode": "PULL", "script": "", "rate_limit": None}
    assert management.patch(where, change).status_code == 200
    assert invalid_fields(management.patch(where, {"rate_limit": 2})) == ["rate_limit"]


@pytest.mark.behaviour("9.8")
def test_a_switch_to_push_needs_an_endpoint() -> None:
    client, where = client_of(), f"{ROOT}/{pulled_subscription().pk}"
    assert invalid_fields(client.patch(where, {"delivery_mode": "PUSH"})) == ["endpoint"]
    change = {"delivery_mode": "PUSH", "endpoint": "https://shop.example/hook"}
    assert client.patch(where, change).json()["delivery_mode"] == "PUSH"
    assert invalid_fields(client.patch(where, {"endpoint": ""})) == ["endpoint"]


@pytest.mark.behaviour("9.8", "5.6")
@pytest.mark.parametrize("paused_by", PausedBy)
def test_a_switch_to_pull_ends_a_suspension_and_no_other_pause(paused_by: PausedBy) -> None:
    made = factories.subscription()
    now = timezone.now()
    Subscription.objects.update(paused_since=now, paused_by=paused_by, paused_reason="why", probe_due_at=now)
    answered = client_of().patch(f"{ROOT}/{made.pk}", {"delivery_mode": "PULL"}).json()
    made.refresh_from_db()
    is_over = paused_by == PausedBy.POLICY
    assert (made.paused_since is None, made.paused_by == "", made.paused_reason == "") == (is_over,) * 3
    assert (made.probe_due_at is None, made.is_fetchable, answered["paused_by"]) == (is_over, is_over, made.paused_by)


@pytest.mark.behaviour("9.8")
def test_a_switch_is_a_change_of_version_and_noted_beside_status_changes() -> None:
    made = factories.subscription()
    for mode, version in ((PULL, 2), (PULL, 3), (PUSH, 4)):
        switch_delivery_mode(made, mode)
        made.refresh_from_db()
        assert made.version == version
    assert [*StatusChange.objects.values_list("subscription_id", "status")] == [(made.pk, Status.ACTIVE)] * 2


@pytest.mark.behaviour("9.2", "9.7")
@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"mailbox_ordered": True, "ack_seconds": 1, "max_redeliveries": 0}, True),
        ({"ack_seconds": 43_200, "max_redeliveries": 1_000}, True),
        ({"max_redeliveries": None}, True),
        ({"mailbox_days": None}, True),
        ({"mailbox_days": 1}, True),
        ({"mailbox_days": 36_500}, True),
        ({"mailbox_days": 0}, False),
        ({"mailbox_days": 36_501}, False),
        ({"ack_seconds": 0}, False),
        ({"ack_seconds": 43_201}, False),
        ({"max_redeliveries": -1}, False),
        ({"max_redeliveries": 1_001}, False),
        ({"mailbox_ordered": None}, False),
    ],
)
def test_a_subscriber_says_how_its_mailbox_hands_out(fields: dict[str, Any], *, is_taken: bool) -> None:
    answered = client_of().patch("/api/v1/subscribers/shop", fields)
    if is_taken:
        assert {name: answered.json()[name] for name in fields} == fields
    else:
        assert invalid_fields(answered) == [*fields]


@pytest.mark.parametrize(
    ("model", "change", "rule"),
    [
        (Subscription, {"paused_since": timezone.now()}, "subscription_pause"),
        (Subscription, {"paused_by": PausedBy.POLICY}, "subscription_pause"),
        (Subscription, {"half_open": True}, "subscription_pause"),
        (Subscription, {"probe_due_at": timezone.now()}, "subscription_pause"),
        (Subscription, PAUSED | {"paused_by": "CHANCE"}, "subscription_pause"),
        (Subscription, {"rate_limit": 0.0}, "subscription_rate_limit"),
        (Subscription, {"rate_limit": 10_001.0}, "subscription_rate_limit"),
        (Subscription, {"rate_limit": float("nan")}, "subscription_rate_limit"),
        (Subscription, {"timeout_seconds": 61}, "subscription_timeout"),
        (Subscription, {"output": "XML"}, "subscription_output"),
        (Subscription, {"delivery_mode": "POLL"}, "subscription_delivery_mode"),
        (Subscription, {"endpoint": ""}, "subscription_endpoint"),
        (Subscriber, {"processing": "RANDOM"}, "subscriber_processing"),
        (Subscriber, {"concurrency": 0}, "subscriber_concurrency"),
        (Subscriber, {"concurrency": 1_001}, "subscriber_concurrency"),
        (Subscriber, {"ack_seconds": 0}, "subscriber_ack_seconds"),
        (Subscriber, {"max_redeliveries": 1_001}, "subscriber_max_redeliveries"),
    ],
)
def test_the_database_stores_no_value_beyond_its_limits(model: Any, change: dict[str, Any], rule: str) -> None:
    factories.subscription()
    with pytest.raises(IntegrityError, match=rule), transaction.atomic():
        model.objects.update(**change)
