"""Subscriptions over the API: fields, policies, rates, PULL mode."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from delivery.models import Delivery
from subscriptions.credentials.tokens import key_of
from subscriptions.models import DeliveryMode, EventKind, PausedBy, Status, StatusChange, Subscriber, Subscription
from tests.support import factories
from tests.support.api import Answer, client_of
from tests.support.mailboxes import pulled_subscription, switch_delivery_mode

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"
JSON = "application/json"

PUSH, PULL = DeliveryMode.PUSH, DeliveryMode.PULL
PAUSED = {"paused_since": timezone.now(), "paused_by": PausedBy.POLICY, "paused_reason": "suspended: answered 503"}
SCRIPT = "$outmessage = $inmessage"


def new(**fields: object) -> dict[str, object]:
    return {"subscriber": "shop", "event_type": "Order.Paid", "endpoint": "https://shop.example/hook", **fields}


@pytest.fixture(autouse=True)
def _shop_and_order_paid() -> None:
    factories.subscriber("shop")
    factories.event_type("Order.Paid")


@pytest.mark.behaviour("1.4")
def test_a_subscription_joins_a_subscriber_to_an_event_type() -> None:
    client = client_of()
    given = new(headers={"X-Team": "blue"}, header_filter_string=" exactly so ", position=3, status="INACTIVE")
    made = client.post(ROOT, given, content_type=JSON)
    body = made.json()
    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{ROOT}/{body['id']}", '"1"')
    assert {name: body[name] for name in given} == given | {"headers": {"X-Team": None}}
    assert len(key_of(body["signing_secret"])) == 32
    read = client.get(made["Location"]).json()
    assert read == {name: value for name, value in body.items() if name != "signing_secret"}


@pytest.mark.behaviour("1.4")
def test_a_new_subscription_is_active_unfiltered_and_first() -> None:
    body = client_of().post(ROOT, new(), content_type=JSON).json()
    assert {name: body[name] for name in ("status", "headers", "header_filter_string", "position")} == {
        "status": "ACTIVE",
        "headers": {},
        "header_filter_string": "",
        "position": 0,
    }


@pytest.mark.parametrize("fixed", ["subscriber", "event_type"])
@pytest.mark.behaviour("1.4")
def test_both_ends_of_a_subscription_are_fixed(fixed: str) -> None:
    made = client_of().post(ROOT, new(), content_type=JSON)
    answer = client_of().patch(made["Location"], {fixed: new()[fixed]}, content_type=JSON)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, f"#/{fixed}")


@pytest.mark.behaviour("1.4")
def test_the_database_refuses_another_end() -> None:
    made, other = factories.subscription(), factories.subscription()
    for ends in ({"subscriber": other.subscriber}, {"event_type": other.event_type}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Subscription.objects.filter(pk=made.pk).update(**ends)


@pytest.mark.behaviour("1.4")
def test_endpoint_headers_filter_and_position_may_change() -> None:
    client = client_of()
    address = client.post(ROOT, new(), content_type=JSON)["Location"]
    changes = {"endpoint": "PUT:http://b.example/", "headers": {"A": "1"}, "header_filter_string": "x", "position": 1}
    answer = client.patch(address, changes, content_type=JSON)
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')
    assert {name: answer.json()[name] for name in changes} == changes | {"headers": {"A": None}}
    assert Subscription.objects.get().headers == {"A": "1"}
    assert client.get(address).json() == answer.json()


@pytest.mark.behaviour("1.4")
def test_a_subscription_is_inactivated_and_activated() -> None:
    client = client_of()
    address = client.post(ROOT, new(), content_type=JSON)["Location"]
    answers = [client.post(f"{address}/{action}", content_type=JSON) for action in ("inactivate", "activate")]
    assert [(answer.status_code, answer.json()["status"]) for answer in answers] == [(200, "INACTIVE"), (200, "ACTIVE")]


def test_a_rotated_secret_is_shown_once_and_replaces_the_old_one() -> None:
    client = client_of()
    made = client.post(ROOT, new(), content_type=JSON)
    rotated = client.post(f"{made['Location']}/rotate-secret", content_type=JSON)
    stored = Subscription.objects.get().signing_secret
    assert (rotated.status_code, rotated.json()["signing_secret"], rotated["ETag"]) == (200, stored, '"2"')
    assert stored != made.json()["signing_secret"]
    assert b"whsec_" not in client.get(made["Location"]).content + client.get(ROOT).content


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://host/path",
        "http://host:8080/path?q=1",
        "PATCH:https://host/path",
        "GET:http://127.0.0.1/",
        "http://[::1]/",
    ],
)
@pytest.mark.behaviour("1.5")
def test_an_endpoint_is_a_url_with_an_optional_method(endpoint: str) -> None:
    made = client_of().post(ROOT, new(endpoint=endpoint), content_type=JSON)
    assert (made.status_code, made.json()["endpoint"]) == (201, endpoint)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "host/path",
        "/path",
        "ftp://host/",
        "https://",
        "https:///path",
        "TRACE:https://host/",
        "patch:https://host/",
        "PATCH: https://host/",
        "PATCH:PATCH:https://host/",
        "https://user:secret@host/",
        "https://user@host/",
        "https://host/#part",
        "https://host\\@other/",
        "https://ho st/",
        "https://host/\r\nX: y",
        "https://host/\0",
        "https://h\u00f6st/",
        "https://host:0/",
        "https://host:99999/",
        "https://host:http/",
        "https://[::1/",
        "https://host/" + "x" * 2048,
        5,
        None,
        True,
        ["https://host/"],
    ],
)
@pytest.mark.behaviour("1.5")
def test_any_other_endpoint_is_refused(endpoint: object) -> None:
    answer = client_of().post(ROOT, new(endpoint=endpoint), content_type=JSON)
    assert (answer.status_code, {error["pointer"] for error in answer.json()["errors"]}) == (400, {"#/endpoint"})
    assert Subscription.objects.count() == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "x"},
        {"webhook-id": "x"},
        {"Cookie": "x"},
        {"Content-Length": "1"},
        {"CallbackURL": "x"},
        {"bad name": "x"},
        {"": "x"},
        {"X": "line\nbreak"},
        {"X": "\u00e4"},
        {"X": 5},
        {"X": None},
        {"X": ["a"]},
        {"x": "1", "X": "2"},
        {f"X-{n}": "" for n in range(51)},
        {"X": "y" * 8193},
        ["X"],
        "X: y",
        None,
    ],
)
def test_headers_that_could_do_harm_are_refused(headers: object) -> None:
    answer = client_of().post(ROOT, new(headers=headers), content_type=JSON)
    assert (answer.status_code, {error["pointer"] for error in answer.json()["errors"]}) == (400, {"#/headers"})


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
def test_the_list_is_narrowed_by_subscriber_event_type_and_status(query: str, found: list[str]) -> None:
    client = client_of()
    factories.subscriber("desk"), factories.event_type("Order.Sent")
    for fields in (
        {"header_filter_string": "a"},
        {"header_filter_string": "b", "event_type": "Order.Sent"},
        {"header_filter_string": "c", "subscriber": "desk", "status": "INACTIVE"},
    ):
        client.post(ROOT, new(**fields), content_type=JSON)
    items = client.get(ROOT + query).json()["items"]
    assert [item["header_filter_string"] for item in items] == found


@pytest.mark.behaviour("1.8")
def test_a_subscription_with_unfinished_deliveries_is_not_deleted() -> None:
    client, made = client_of(), factories.subscription()
    pending = Delivery.objects.create(subscription=made, size=2)
    answer = client.delete(f"{ROOT}/{made.pk}")
    assert (answer.status_code, answer.json()["code"]) == (409, "still_in_use")
    assert "cancel them" in answer.json()["detail"]
    assert client.get(f"{ROOT}/{made.pk}").status_code == 200
    pending.delete()
    assert client.delete(f"{ROOT}/{made.pk}").status_code == 204
    assert client.get(f"{ROOT}/{made.pk}").status_code == 404


@pytest.mark.behaviour("1.2")
def test_a_subscriber_configures_its_own_subscriptions() -> None:
    own = client_of(factories.subscriber("desk"))
    made = own.post(ROOT, new(subscriber="desk"), content_type=JSON)
    address = made["Location"]
    answers = [
        made,
        own.get(address),
        own.patch(address, {"endpoint": "http://b.example/"}, content_type=JSON),
        own.post(f"{address}/inactivate", content_type=JSON),
        own.post(f"{address}/activate", content_type=JSON),
        own.post(f"{address}/rotate-secret", content_type=JSON),
        own.delete(address),
    ]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200, 200, 204]


@pytest.mark.behaviour("1.2")
def test_a_subscriber_cannot_subscribe_another() -> None:
    own = client_of(factories.subscriber("desk"))
    answers = [own.post(ROOT, new(subscriber=name), content_type=JSON) for name in ("shop", "nobody")]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert answers[0].json()["errors"][0]["detail"] == answers[1].json()["errors"][0]["detail"].replace(
        "nobody", "shop"
    )


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
    (error,) = client_of().post(ROOT, new(**fields), content_type=JSON).json()["errors"]
    assert (error["pointer"], error["detail"]) == (pointer, detail)


@pytest.mark.parametrize("address", ["subscriptions", "subscribers"])
def test_the_error_for_a_status_names_its_actions(address: str) -> None:
    made = factories.subscription()
    name = str(made.pk) if address == "subscriptions" else made.subscriber.name
    answer = client_of().patch(f"/api/v1/{address}/{name}", {"status": "INACTIVE"}, content_type=JSON)
    (error,) = answer.json()["errors"]
    assert error["detail"] == "This cannot be set here: POST …/activate or …/inactivate."


@pytest.mark.parametrize(
    ("address", "field"), [("subscriptions", "status"), ("deliveries", "status"), ("messages", "outcome")]
)
def test_the_error_of_a_filter_lists_its_choices(address: str, field: str) -> None:
    (error,) = client_of().get(f"/api/v1/{address}", {field: "ON"}).json()["errors"]
    assert (error["parameter"], error["detail"].startswith('"ON" is not one of ')) == (field, True)


WAYS = {
    "retry_policy": "Workfront",
    "rate_limit": 2.5,
    "output": "CLOUDEVENTS_BINARY",
    "monitor_url": "https://shop.example/health",
}


def pointers(answer: Answer) -> set[str]:
    assert answer.status_code == 400
    return {error["pointer"] for error in answer.json()["errors"]}


@pytest.mark.behaviour("1.4", "5.1")
def test_policy_rate_output_and_monitor_are_set_and_changed() -> None:
    client = client_of()
    made = client.post(ROOT, new(**WAYS), content_type=JSON)
    assert (made.status_code, {**made.json(), **WAYS}) == (201, made.json())
    nothing = {"retry_policy": None, "rate_limit": None, "output": "AS_PUBLISHED", "monitor_url": ""}
    changed = client.patch(made["Location"], nothing, content_type=JSON)
    assert (changed.status_code, changed["ETag"], {**changed.json(), **nothing}) == (200, '"2"', changed.json())


@pytest.mark.behaviour("5.1")
def test_by_default_a_subscription_has_teamforge_no_limit_and_output_as_published() -> None:
    body = client_of().post(ROOT, new(), content_type=JSON).json()
    assert [body[name] for name in WAYS] == [None, None, "AS_PUBLISHED", ""]


@pytest.mark.behaviour("5.1")
def test_a_subscriber_chooses_a_policy_but_does_not_change_it() -> None:
    own = client_of(factories.subscriber("desk"))
    made = own.post(ROOT, new(subscriber="desk", retry_policy="webMethods"), content_type=JSON)
    assert (made.status_code, made.json()["retry_policy"]) == (201, "webMethods")
    factories.retry_policy("mine")
    assert own.patch("/api/v1/retry-policies/mine", {"jitter": 0}, content_type=JSON).status_code == 403


@pytest.mark.behaviour("4.9", "5.1")
def test_a_changed_policy_is_a_change_of_those_that_follow_it() -> None:
    client = client_of()
    factories.retry_policy("mine", max_retries=2, on_exhausted="FAIL")
    made = client.post(ROOT, new(retry_policy="mine"), content_type=JSON)
    client.patch("/api/v1/retry-policies/mine", {"max_retries": 3}, content_type=JSON)
    assert client.get(made["Location"])["ETag"] == '"2"'
    stale = client.patch(made["Location"], {"position": 1}, content_type=JSON, headers={"If-Match": '"1"'})
    assert stale.status_code == 412


@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.SYNC])
@pytest.mark.parametrize("way", ["retry_policy", "rate_limit", "monitor_url"])
@pytest.mark.behaviour("5.1")
def test_only_topic_subscriptions_have_policy_rate_and_monitor(kind: EventKind, way: str) -> None:
    factories.event_type("Order.Asked", kind)
    refused = client_of().post(ROOT, new(event_type="Order.Asked", **{way: WAYS[way]}), content_type=JSON)
    assert pointers(refused) == {f"#/{way}"}
    made = client_of().post(ROOT, new(event_type="Order.Asked"), content_type=JSON)
    assert pointers(client_of().patch(made["Location"], {way: WAYS[way]}, content_type=JSON)) == {f"#/{way}"}
    assert Subscription.objects.values_list(way, flat=True).get() in {None, ""}


@pytest.mark.behaviour("5.1")
def test_a_subscription_to_a_pattern_has_them_too() -> None:
    fields = {"event_type": None, "event_pattern": "Order.*", **WAYS}
    assert client_of().post(ROOT, new(**fields), content_type=JSON).status_code == 201


def test_a_scripted_subscription_has_no_output() -> None:
    factories.event_type("Order.Asked", EventKind.SYNC)
    fields = {"event_type": "Order.Asked", "endpoint": "webr://here", "script": "$outmessage = 1"}
    refused = client_of().post(ROOT, new(**fields, output="CLOUDEVENTS_BINARY"), content_type=JSON)
    assert pointers(refused) == {"#/output"}
    assert client_of().post(ROOT, new(**fields), content_type=JSON).status_code == 201


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
        ("output", "XML"),
        ("output", None),
        ("monitor_url", "shop.example"),
        ("monitor_url", "GET:https://shop.example/"),
        ("monitor_url", "https://user:secret@shop.example/"),
        ("monitor_url", None),
    ],
)
@pytest.mark.behaviour("1.4")
def test_anything_else_is_refused_at_its_field(way: str, value: object) -> None:
    assert pointers(client_of().post(ROOT, new(**{way: value}), content_type=JSON)) == {f"#/{way}"}
    assert Subscription.objects.count() == 0


@pytest.mark.parametrize("field", ["paused_since", "paused_by", "paused_reason", "half_open", "probe_due_at"])
def test_a_pause_is_shown_and_not_set(field: str) -> None:
    made = client_of().post(ROOT, new(), content_type=JSON)
    assert made.json()[field] in {None, "", False}
    assert pointers(client_of().patch(made["Location"], {field: None}, content_type=JSON)) == {f"#/{field}"}


def new_mailbox(**fields: object) -> dict[str, object]:
    return {"subscriber": "shop", "event_type": "Order.Paid", **fields}


def refused_fields(answer: Answer) -> list[str]:
    assert answer.status_code == 400
    return sorted(error["pointer"].removeprefix("#/") for error in answer.json()["errors"])


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
def test_push_is_the_default_and_pull_needs_no_endpoint() -> None:
    client = client_of()
    pushed = client.post(ROOT, new_mailbox(endpoint="https://shop.example/hook"), content_type=JSON)
    fetched = client.post(
        ROOT, new_mailbox(delivery_mode="PULL", event_pattern="*", event_type=None), content_type=JSON
    )
    kept = client.post(ROOT, new_mailbox(delivery_mode="PULL", endpoint="https://shop.example/hook"), content_type=JSON)
    assert [
        (made.status_code, made.json()["delivery_mode"], made.json()["endpoint"]) for made in (pushed, fetched, kept)
    ] == [
        (201, "PUSH", "https://shop.example/hook"),
        (201, "PULL", ""),
        (201, "PULL", "https://shop.example/hook"),
    ]
    listed = client.get(f"{ROOT}?delivery_mode=PULL").json()["items"]
    assert {one["id"] for one in listed} == {fetched.json()["id"], kept.json()["id"]}


@pytest.mark.behaviour("9.1", "5.1")
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"retry_policy": "Workfront"}, ["retry_policy"]),
        ({"rate_limit": 2.5}, ["rate_limit"]),
        ({"monitor_url": "https://shop.example/health"}, ["monitor_url"]),
        ({"script": SCRIPT}, ["script"]),
        ({"script": SCRIPT, "rate_limit": 1}, ["rate_limit", "script"]),
        ({"endpoint": "ftp://shop.example/"}, ["endpoint"]),
        ({"delivery_mode": "POLL"}, ["delivery_mode"]),
        ({"delivery_mode": "PUSH"}, ["endpoint"]),
        ({"delivery_mode": "PUSH", "endpoint": ""}, ["endpoint"]),
    ],
)
def test_fields_of_push_are_refused_with_pull(fields: dict[str, Any], named: list[str]) -> None:
    refused = client_of().post(ROOT, new_mailbox(**{"delivery_mode": "PULL", **fields}), content_type=JSON)
    assert (refused_fields(refused), Subscription.objects.count()) == (named, 0)


@pytest.mark.behaviour("9.1")
@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.SYNC])
def test_only_topic_events_are_fetched(kind: EventKind) -> None:
    factories.event_type("Job.Due", kind)
    refused = client_of().post(ROOT, new_mailbox(event_type="Job.Due", delivery_mode="PULL"), content_type=JSON)
    assert refused_fields(refused) == ["delivery_mode"]


@pytest.mark.behaviour("9.8")
def test_a_switch_to_pull_clears_fields_of_push_in_the_same_change() -> None:
    client = client_of()
    made = client.post(
        ROOT, new_mailbox(endpoint="https://shop.example/hook", script=SCRIPT, rate_limit=2), content_type=JSON
    )
    where = made["Location"]
    assert refused_fields(client.patch(where, {"delivery_mode": "PULL"}, content_type=JSON)) == ["rate_limit", "script"]
    change = {"delivery_mode": "PULL", "script": "", "rate_limit": None}
    assert client.patch(where, change, content_type=JSON).status_code == 200
    assert refused_fields(client.patch(where, {"rate_limit": 2}, content_type=JSON)) == ["rate_limit"]


@pytest.mark.behaviour("9.8")
def test_a_switch_to_push_needs_an_endpoint() -> None:
    client, where = client_of(), f"{ROOT}/{pulled_subscription().pk}"
    assert refused_fields(client.patch(where, {"delivery_mode": "PUSH"}, content_type=JSON)) == ["endpoint"]
    change = {"delivery_mode": "PUSH", "endpoint": "https://shop.example/hook"}
    assert client.patch(where, change, content_type=JSON).json()["delivery_mode"] == "PUSH"
    assert refused_fields(client.patch(where, {"endpoint": ""}, content_type=JSON)) == ["endpoint"]


@pytest.mark.behaviour("9.8", "5.6")
@pytest.mark.parametrize("paused_by", PausedBy)
def test_a_switch_to_pull_ends_a_suspension_and_no_other_pause(paused_by: PausedBy) -> None:
    made = factories.subscription()
    now = timezone.now()
    Subscription.objects.update(paused_since=now, paused_by=paused_by, paused_reason="why", probe_due_at=now)
    answered = client_of().patch(f"{ROOT}/{made.pk}", {"delivery_mode": "PULL"}, content_type=JSON).json()
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


@pytest.mark.parametrize("change", [{"delivery_mode": "POLL"}, {"delivery_mode": "PUSH", "endpoint": ""}])
def test_the_database_stores_no_other_mode_and_no_push_to_nowhere(change: dict[str, str]) -> None:
    made = pulled_subscription()
    with pytest.raises(IntegrityError, match=r"subscription_(delivery_mode|endpoint)"), transaction.atomic():
        Subscription.objects.filter(pk=made.pk).update(**change)


@pytest.mark.behaviour("9.2", "9.7")
@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"mailbox_ordered": True, "ack_seconds": 1, "max_redeliveries": 0}, True),
        ({"ack_seconds": 43_200, "max_redeliveries": 1_000}, True),
        ({"max_redeliveries": None}, True),
        ({"ack_seconds": 0}, False),
        ({"ack_seconds": 43_201}, False),
        ({"max_redeliveries": -1}, False),
        ({"max_redeliveries": 1_001}, False),
        ({"mailbox_ordered": None}, False),
    ],
)
def test_a_subscriber_says_how_its_mailbox_hands_out(fields: dict[str, Any], *, is_taken: bool) -> None:
    answered = client_of().patch("/api/v1/subscribers/shop", fields, content_type=JSON)
    if is_taken:
        assert {name: answered.json()[name] for name in fields} == fields
    else:
        assert refused_fields(answered) == [*fields]


@pytest.mark.parametrize("fields", [{"ack_seconds": 0}, {"max_redeliveries": 1_001}])
def test_the_database_stores_no_mailbox_beyond_its_limits(fields: dict[str, int]) -> None:
    with pytest.raises(IntegrityError, match=r"subscriber_(ack_seconds|max_redeliveries)"), transaction.atomic():
        Subscriber.objects.update(**fields)
