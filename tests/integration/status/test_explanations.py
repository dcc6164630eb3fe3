"""Why a message reaches a subscription or does not, over the API."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from delivery.models import Delivery, Message
from delivery.status import explain_message
from subscriptions.models import EventType, Status, Subscription
from tests.support import factories
from tests.support.api import EVENT, Answer, client_of, publish

pytestmark = pytest.mark.django_db

OPEN = "$$->'Body'->>'state' = 'open'"
URGENT = "$$->'Body'->'priority' < '3'"
BODY = '{"state": "open", "priority": 1}'
MISSING = "The filter is null: something that it compares is missing."
FALSE = "The filter is false."
FAILS = "The filter fails: the delivery is HELD."


@pytest.fixture
def subscription(event_type: EventType) -> Subscription:
    return factories.subscription(event_type=event_type, filter=f"{OPEN} AND {URGENT}", header_filter_string="blue")


def ask(client: Client, path: str, **fields: object) -> Answer:
    return client.post(f"/api/v1/{path}", fields)


def test_a_subscriptions_filters_are_tested_term_by_term(management: Client, subscription: Subscription) -> None:
    path = f"subscriptions/{subscription.pk}/test-filter"
    answer = ask(management, path, body='{"state": "open", "priority": 1.0}', filter_string="blue")
    state = {"path": "$$->'Body'->>'state'", "value": "open"}
    priority = {"path": "$$->'Body'->'priority'", "value": "1.0"}
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "qualifies": True,
            "why": "The filter is true.",
            "dropped_headers": [],
            "header_filter": {"expected": "blue", "actual": "blue", "matches": True},
            "filter": {
                "result": "true",
                "reason": "",
                "terms": [
                    {"text": OPEN, "result": "true", "values": [state], "reason": ""},
                    {"text": URGENT, "result": "true", "values": [priority], "reason": ""},
                ],
            },
        },
    )


@pytest.mark.parametrize(
    ("message", "why", "results"),
    [
        ({"body": BODY}, "The message has no FILTER_STRING.", ["true", "true"]),
        ({"body": BODY, "filter_string": "Blue"}, "Its FILTER_STRING is another one.", ["true", "true"]),
        ({"body": BODY.replace("open", "shut"), "headers": {"Filter_String": "blue"}}, FALSE, ["false", "true"]),
        ({"body": '{"state": "open"}', "filter_string": "blue"}, MISSING, ["true", "null"]),
        ({"body": BODY.replace("1", "1e999999"), "filter_string": "blue"}, FAILS, ["true", "failed"]),
        ({"body": "state=open", "content_type": "text/plain", "filter_string": "blue"}, MISSING, ["null", "null"]),
        ({"body_base64": "/w==", "content_type": "text/plain", "filter_string": "blue"}, MISSING, ["null", "null"]),
    ],
)
def test_the_explanation_says_why_a_message_does_not_qualify(
    management: Client, subscription: Subscription, message: dict[str, Any], why: str, results: list[str]
) -> None:
    told = ask(management, f"subscriptions/{subscription.pk}/test-filter", **message).json()
    assert (told["qualifies"], told["why"]) == (False, why)
    assert [term["result"] for term in told["filter"]["terms"]] == results


def test_a_free_filter_is_tested_before_anybody_subscribes(management: Client) -> None:
    answer = ask(
        management, "filters/test", filter="$$->'Header'->'X-Team' ? 'blue'", headers={"x-team": "blue"}, body="1"
    )
    assert (answer.status_code, answer.json()["qualifies"], answer.json()["header_filter"]) == (200, True, None)


@pytest.mark.behaviour("3.5")
@pytest.mark.parametrize(
    ("fields", "pointer", "detail"),
    [
        ({"filter": "$$->>'Body' = 5"}, "#/filter", "line 1, column 15"),
        ({"filter": f"$$->>'Body' = '{'x' * 5 * 1024}'"}, "#/filter", "at most 4096 bytes"),
        ({"filter": "(" * 100 + OPEN + ")" * 100}, "#/filter", "at most 20 deep"),
        ({"filter": "$$->>'Body' = \u2018b\u2019"}, "#/filter", "line 1, column 15"),
        ({"filter": "$$->>'\0' = 'b'"}, "#/filter", "line 1, column 7"),
        ({"filter": 5}, "#/filter", "Give a text"),
        ({"body_base64": "%"}, "#/body_base64", "not base64"),
        ({"body": "{}", "body_base64": ""}, "#/body_base64", "one body"),
        ({"body": "{}", "message_id": 1}, "#/message_id", "either"),
        ({"message_id": "1"}, "#/message_id", "whole number"),
        ({"headers": {"a": 5}}, "#/headers/a", "Give a text or a list of texts"),
        ({"headers": {"a": ["b", 5]}}, "#/headers/a/1", "Give a text"),
        ({"body": {"state": "open"}}, "#/body", r'as in "{\"state\": \"open\"}"'),
        ({"filter": OPEN}, "#", "Give a message: a message_id, or a body"),
        ({"body": "{state}"}, "#/body", "not JSON"),
        ({"body": "x", "content_type": "application/cloudevents+json"}, "#/body", "not JSON"),
        ({"body_base64": ""}, "#/body_base64", "empty"),
        ({"what": 1}, "#/what", "no such field"),
    ],
)
def test_invalid_trials_are_refused(management: Client, fields: dict[str, object], pointer: str, detail: str) -> None:
    answer = ask(management, "filters/test", **fields)
    error = answer.json()["errors"][0]
    assert (answer.status_code, error["pointer"], detail in error["detail"]) == (400, pointer, True)


def test_messages_are_tested_by_keys_that_see_them(client: Client, management: Client, event_type: EventType) -> None:
    theirs, other = factories.subscription(event_type=event_type), factories.subscription()
    publish(client, b'{"state": "open"}')
    tests = {"filter": OPEN, "message_id": Message.objects.get().pk}
    clients = [management, client_of(theirs.subscriber), client_of(other.subscriber), client]
    assert [ask(one, "filters/test", **tests).status_code for one in clients] == [200, 200, 404, 403]
    assert ask(management, "filters/test", **tests).json()["qualifies"] is True
    path = f"subscriptions/{other.pk}/test-filter"
    assert [ask(one, path, body="1").status_code for one in clients] == [200, 404, 200, 403]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda _: factories.subscription(filter=OPEN), "The message is of {}, the subscription is for {}."),
        (lambda _: factories.subscription(event_pattern="A.*"), "The message is of {}, the subscription is for {}."),
        (lambda kind: factories.subscription(None, kind, status=Status.INACTIVE), "The subscription is INACTIVE."),
        (
            lambda kind: factories.subscription(factories.subscriber(status="INACTIVE"), kind),
            "The subscriber is INACTIVE.",
        ),
    ],
)
def test_a_message_that_would_not_be_delivered_never_qualifies(
    client: Client, management: Client, event_type: EventType, make: Callable[[EventType], Subscription], why: str
) -> None:
    subscription = make(event_type)
    publish(client, b'{"state": "open"}')
    path, message = f"subscriptions/{subscription.pk}/test-filter", Message.objects.get()
    told = ask(management, path, message_id=message.pk).json()
    why = why.format(event_type.name, subscription.events)
    assert (message.deliveries_count, told["qualifies"], told["why"]) == (0, False, why)
    assert (told["filter"] or {"result": "true"})["result"] == "true"
    assert ask(management, path, body='{"state": "open"}').json()["qualifies"] is ("INACTIVE" not in why)


def test_filter_tests_drop_the_headers_that_a_publish_drops(management: Client) -> None:
    headers = {"Authorization": "Bearer x", "cookie": "a=b", "X-Team": ["blue", "red"], "FILTER_STRING": "eu"}
    for name in ("Authorization", "Cookie"):
        told = ask(management, "filters/test", filter=f"$$->'Header' ? '{name}'", headers=headers, body="1").json()
        assert (told["qualifies"], told["dropped_headers"]) == (False, ["Authorization", "cookie"])
    second = ask(management, "filters/test", filter="$$->'Header'->'X-Team'->>1 = 'red'", headers=headers, body="1")
    assert second.json()["qualifies"] is True


@pytest.mark.behaviour("3.5")
def test_a_broken_filter_is_refused_when_it_is_saved(management: Client, subscription: Subscription) -> None:
    path = f"/api/v1/subscriptions/{subscription.pk}"
    answer = management.patch(path, {"filter": "$$->>'Body' == 'b'"})
    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["pointer"], error["code"]) == (400, "#/filter", "filter")
    assert "(line 1, column 14)" in error["detail"]
    assert management.patch(path, {"filter": OPEN}).json()["filter"] == OPEN


def test_management_sees_who_gets_a_message_and_why(client: Client, management: Client, event_type: EventType) -> None:
    made = [
        factories.subscription(event_type=event_type),
        factories.subscription(event_type=event_type, filter=OPEN),
        factories.subscription(event_type=event_type, filter=URGENT),
        factories.subscription(event_type=event_type, header_filter_string="blue"),
        factories.subscription(event_type=event_type, status=Status.INACTIVE),
        factories.subscription(factories.subscriber(status=Status.INACTIVE), event_type),
        factories.subscription(event_type=None, event_pattern="Shop.*"),
    ]
    factories.subscription()
    publish(client, b'{"state": "open", "priority": 5}')
    late = factories.subscription(event_type=event_type)
    message = Message.objects.get()
    told = management.get(f"/api/v1/messages/{message.pk}/explanation").json()
    assert [(one["subscription_id"], one["qualifies"], one["why"]) for one in told["subscriptions"]] == [
        (made[0].pk, True, "There is no filter."),
        (made[1].pk, True, "The filter is true."),
        (made[2].pk, False, "The filter is false."),
        (made[3].pk, False, "The message has no FILTER_STRING."),
        (made[4].pk, False, "The subscription is INACTIVE."),
        (made[5].pk, False, "The subscriber is INACTIVE."),
        (made[6].pk, True, "There is no filter."),
        (late.pk, False, "The subscription was made after this message was published."),
    ]
    assert told["is_truncated"] is False
    assert message.deliveries_count == sum(one["qualifies"] for one in told["subscriptions"])


@pytest.mark.behaviour("2.8")
@pytest.mark.parametrize("destination", ["shop", "default"])
def test_the_first_qualifying_subscription_of_the_destination_gets_the_message(
    client: Client, management: Client, event_type: EventType, destination: str
) -> None:
    shop, other = factories.subscriber("shop"), factories.subscriber("other")
    made = [
        factories.subscription(shop, event_type, position=3),
        factories.subscription(shop, event_type, position=1, filter="$$->'Body'->>'state' = 'closed'"),
        factories.subscription(shop, event_type, position=2),
        factories.subscription(other, event_type),
    ]
    publish(client, b'{"state": "open"}', Broker_Destination=destination)
    message = Message.objects.get()
    told = management.get(f"/api/v1/messages/{message.pk}/explanation").json()
    elsewhere = {"shop": (False, "The message is for shop alone."), "default": (True, "There is no filter.")}
    assert [(one["qualifies"], one["why"]) for one in told["subscriptions"]] == [
        (False, f"Subscription {made[2].pk}, before it at its subscriber, takes it."),
        (False, "The filter is false."),
        (True, "There is no filter."),
        elsewhere[destination],
    ]
    assert message.deliveries_count == sum(one["qualifies"] for one in told["subscriptions"])


@pytest.mark.behaviour("2.8")
@pytest.mark.parametrize("by", ["position", "id"])
def test_a_named_subscription_is_explained_even_if_it_is_for_other_events(
    client: Client, management: Client, event_type: EventType, by: str
) -> None:
    shop, others = factories.subscriber("shop"), factories.event_type("Mill.Flour.Ground")
    beside = factories.subscription(shop, event_type, position=1)
    named = factories.subscription(shop, others, position=2)
    destination = {"position": "shop/2", "id": f"#{named.pk}"}[by]
    publish(client, Broker_Destination=destination)
    told = management.get(f"/api/v1/messages/{Message.objects.get().pk}/explanation").json()
    assert [(one["subscription_id"], one["qualifies"], one["why"]) for one in told["subscriptions"]] == [
        (beside.pk, False, f"The message is for {destination} alone."),
        (named.pk, False, f"The message is of {event_type.name}, the subscription is for Mill.Flour.Ground."),
    ]


@pytest.mark.behaviour("2.8", "2.15")
@pytest.mark.parametrize(
    ("destination", "named"),
    [
        (None, "ABCDE"),
        ("default", "ABCDE"),
        ("shop", "ABC"),
        ("Shop", "E"),
        ("shop/0", ""),
        ("shop/1", "A"),
        ("shop/2", "BC"),
        ("#{B}", "B"),
        ("#{D}", "D"),
        ("{A}", ""),
        ("#999999999", ""),
        ("nobody", ""),
        ("nobody/1", ""),
    ],
)
def test_publishing_dry_runs_and_explanations_agree_on_whom_a_destination_names(
    client: Client, management: Client, event_type: EventType, destination: str | None, named: str
) -> None:
    shop = factories.subscriber("shop")
    owners = {"A": (shop, 1), "B": (shop, 2), "C": (shop, 2), "D": (factories.subscriber("other"), 2)}
    owners["E"] = (factories.subscriber("Shop"), 1)
    made = {name: factories.subscription(owner, event_type, position=n).pk for name, (owner, n) in owners.items()}
    asked = {} if destination is None else {"Broker_Destination": destination.format(**made)}
    found = {"published": "", "dry run": "", "explained": ""}
    for name, pk in made.items():
        Subscription.objects.update(filter="$$->'Body'->>'state' = 'paid'")
        Subscription.objects.filter(pk=pk).update(filter="")
        message_id = publish(client, b"{}", **asked).json()["id"]
        decided = publish(management, b"{}", event=f"{EVENT}/dry-run", **asked).json()["subscriptions"]
        explained = management.get(f"/api/v1/messages/{message_id}/explanation").json()["subscriptions"]
        got = {
            "published": {*Delivery.objects.filter(message=message_id).values_list("subscription_id", flat=True)},
            "dry run": {one["subscription_id"] for one in decided if one["decision"] == "RECEIVES"},
            "explained": {one["subscription_id"] for one in explained if one["qualifies"]},
        }
        found = {way: found[way] + name * (ids == {pk}) for way, ids in got.items()}
    assert found == dict.fromkeys(found, named)


def test_explanations_are_truncated(
    client: Client, management: Client, event_type: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain_message, "MAX_EXPLAINED", 2)
    made = [factories.subscription(event_type=event_type) for _ in range(3)]
    publish(client)
    told = management.get(f"/api/v1/messages/{Message.objects.get().pk}/explanation").json()
    shown = [one["subscription_id"] for one in told["subscriptions"]]
    assert (shown, told["is_truncated"]) == ([made[0].pk, made[1].pk], True)
