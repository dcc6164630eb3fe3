"""Subscriptions over the API."""

import pytest
from django.db import IntegrityError, transaction

from delivery.models import Delivery
from subscriptions.credentials.tokens import key_of
from subscriptions.models import Subscription
from tests import factories
from tests.clients import client_of

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/subscriptions"
JSON = "application/json"


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
        ({"status": "ON"}, "#/status", '"ON" is none of ACTIVE, INACTIVE.'),
        (
            {"event_type": "Shop.Order.*"},
            "#/event_type",
            "This is no event type's name; give a pattern as event_pattern.",
        ),
    ],
)
def test_a_refusal_says_what_to_give(fields: dict[str, object], pointer: str, detail: str) -> None:
    (error,) = client_of().post(ROOT, new(**fields), content_type=JSON).json()["errors"]
    assert (error["pointer"], error["detail"]) == (pointer, detail)


@pytest.mark.parametrize("address", ["subscriptions", "subscribers"])
def test_whoever_sets_a_status_is_led_to_its_actions(address: str) -> None:
    made = factories.subscription()
    name = str(made.pk) if address == "subscriptions" else made.subscriber.name
    answer = client_of().patch(f"/api/v1/{address}/{name}", {"status": "INACTIVE"}, content_type=JSON)
    (error,) = answer.json()["errors"]
    assert error["detail"] == "This cannot be set here: POST …/activate or …/inactivate."


@pytest.mark.parametrize(
    ("address", "field"), [("subscriptions", "status"), ("deliveries", "status"), ("messages", "outcome")]
)
def test_a_list_that_is_narrowed_to_no_choice_lists_them(address: str, field: str) -> None:
    (error,) = client_of().get(f"/api/v1/{address}", {field: "ON"}).json()["errors"]
    assert (error["parameter"], error["detail"].startswith('"ON" is none of ')) == (field, True)
