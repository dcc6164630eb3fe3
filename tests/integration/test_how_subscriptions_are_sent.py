"""What a subscription says of its deliveries on their way out, over the API: policy, rate, output, monitor."""

import pytest

from subscriptions.models import EventKind, Subscription
from tests import factories
from tests.clients import Answer, client_of

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"
JSON = "application/json"
WAYS = {
    "retry_policy": "Workfront",
    "rate_limit": 2.5,
    "output": "CLOUDEVENTS_BINARY",
    "monitor_url": "https://shop.example/health",
}


def new(**fields: object) -> dict[str, object]:
    return {"subscriber": "shop", "event_type": "Order.Paid", "endpoint": "https://shop.example/hook", **fields}


def pointers(answer: Answer) -> set[str]:
    assert answer.status_code == 400
    return {error["pointer"] for error in answer.json()["errors"]}


@pytest.fixture(autouse=True)
def _shop_and_order_paid() -> None:
    factories.subscriber("shop")
    factories.event_type("Order.Paid")


@pytest.mark.behaviour("1.4", "5.1")
def test_they_are_told_when_it_is_made_and_may_change() -> None:
    client = client_of()
    made = client.post(ROOT, new(**WAYS), content_type=JSON)
    assert (made.status_code, {**made.json(), **WAYS}) == (201, made.json())
    nothing = {"retry_policy": None, "rate_limit": None, "output": "AS_PUBLISHED", "monitor_url": ""}
    changed = client.patch(made["Location"], nothing, content_type=JSON)
    assert (changed.status_code, changed["ETag"], {**changed.json(), **nothing}) == (200, '"2"', changed.json())


@pytest.mark.behaviour("5.1")
def test_without_being_told_it_is_as_teamforge_says_without_limit_and_as_published() -> None:
    body = client_of().post(ROOT, new(), content_type=JSON).json()
    assert [body[name] for name in WAYS] == [None, None, "AS_PUBLISHED", ""]


@pytest.mark.behaviour("5.1")
def test_a_subscriber_chooses_its_own_policy_and_does_not_change_what_it_says() -> None:
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
def test_one_for_a_pattern_has_them_too() -> None:
    fields = {"event_type": None, "event_pattern": "Order.*", **WAYS}
    assert client_of().post(ROOT, new(**fields), content_type=JSON).status_code == 201


def test_what_a_script_answers_has_no_output() -> None:
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
