"""Which subscriptions may be fetched, what they have, and switching them (behaviour 9.1, 9.8)."""

from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from subscriptions.models import DeliveryMode, EventKind, PausedBy, Status, StatusChange, Subscriber, Subscription
from tests import factories
from tests.clients import Answer, client_of
from tests.mailboxes import pulled_subscription, switch

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"
JSON = "application/json"
PUSH, PULL = DeliveryMode.PUSH, DeliveryMode.PULL
PAUSED = {"paused_since": timezone.now(), "paused_by": PausedBy.POLICY, "paused_reason": "suspended: answered 503"}
SCRIPT = "$outmessage = $inmessage"


def new(**fields: object) -> dict[str, object]:
    return {"subscriber": "shop", "event_type": "Order.Paid", **fields}


def refused_fields(answer: Answer) -> list[str]:
    assert answer.status_code == 400
    return sorted(error["pointer"].removeprefix("#/") for error in answer.json()["errors"])


@pytest.fixture(autouse=True)
def _shop_and_order_paid() -> None:
    factories.subscriber("shop")
    factories.event_type("Order.Paid")


@pytest.mark.behaviour("9.1", "1.6")
@pytest.mark.parametrize("mode", DeliveryMode)
@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize(
    ("pause", "is_paused", "is_tried"),
    [({}, False, False), (PAUSED, True, False), (PAUSED | {"half_open": True}, True, True)],
)
def test_either_it_is_sent_or_it_is_fetched_and_paused_or_inactive_neither(
    mode: DeliveryMode, status: Status, pause: dict[str, Any], is_paused: bool, is_tried: bool
) -> None:
    made = factories.subscription()
    Subscription.objects.filter(pk=made.pk).update(delivery_mode=mode, status=status, **pause)
    made.refresh_from_db()
    is_active = status == Status.ACTIVE
    assert made.is_sending == (mode == PUSH and is_active and (not is_paused or is_tried))
    assert made.is_fetchable == (mode == PULL and is_active and not is_paused)


@pytest.mark.behaviour("9.1")
def test_a_subscription_is_pushed_unless_told_otherwise_and_one_that_is_fetched_needs_no_endpoint() -> None:
    client = client_of()
    pushed = client.post(ROOT, new(endpoint="https://shop.example/hook"), content_type=JSON)
    fetched = client.post(ROOT, new(delivery_mode="PULL", event_pattern="*", event_type=None), content_type=JSON)
    kept = client.post(ROOT, new(delivery_mode="PULL", endpoint="https://shop.example/hook"), content_type=JSON)
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
def test_what_belongs_to_push_is_refused_by_name_with_pull(fields: dict[str, Any], named: list[str]) -> None:
    refused = client_of().post(ROOT, new(**{"delivery_mode": "PULL", **fields}), content_type=JSON)
    assert (refused_fields(refused), Subscription.objects.count()) == (named, 0)


@pytest.mark.behaviour("9.1")
@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.SYNC])
def test_only_topic_events_are_fetched(kind: EventKind) -> None:
    factories.event_type("Job.Due", kind)
    refused = client_of().post(ROOT, new(event_type="Job.Due", delivery_mode="PULL"), content_type=JSON)
    assert refused_fields(refused) == ["delivery_mode"]


@pytest.mark.behaviour("9.8")
def test_a_switch_to_pull_clears_what_belongs_to_push_in_the_same_change_or_not_at_all() -> None:
    client = client_of()
    made = client.post(ROOT, new(endpoint="https://shop.example/hook", script=SCRIPT, rate_limit=2), content_type=JSON)
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
        switch(made, mode)
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
