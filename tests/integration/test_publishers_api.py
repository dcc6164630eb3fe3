"""Publishers over the API."""

import pytest

from tests import factories
from tests.clients import client_of

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/publishers"


@pytest.mark.behaviour("1.2")
def test_a_publisher_may_be_limited_to_event_types() -> None:
    for name in ("Order.Paid", "Order.Sent"):
        factories.event_type(name)
    client = client_of()
    body = {"name": "till", "event_types": ["Order.Paid"]}
    made = client.post(ROOT, body, content_type="application/json")
    assert (made.status_code, made.json()["event_types"]) == (201, ["Order.Paid"])
    changed = client.patch(f"{ROOT}/till", {"event_types": ["Order.Sent"]}, content_type="application/json")
    assert (changed.status_code, changed.json()["event_types"], changed["ETag"]) == (200, ["Order.Sent"], '"2"')
    assert client.get(f"{ROOT}/till").json() == changed.json()


def test_a_publisher_without_a_list_may_publish_everything() -> None:
    made = client_of().post(ROOT, {"name": "till"}, content_type="application/json")
    assert (made.status_code, made.json()["event_types"], made.json()["description"]) == (201, [], "")


@pytest.mark.parametrize("given", [{}, {"Order.Paid": 1}, "Order.Paid", 5, None, [5], [None], [["Order.Paid"]]])
@pytest.mark.behaviour("1.2")
def test_what_is_no_list_of_names_never_lifts_a_limit(given: object) -> None:
    limited = factories.publisher("till", event_types=[factories.event_type("Order.Paid")])
    answer = client_of().patch(f"{ROOT}/till", {"event_types": given}, content_type="application/json")
    assert (answer.status_code, {error["pointer"] for error in answer.json()["errors"]}) == (400, {"#/event_types"})
    assert [known.name for known in limited.event_types.all()] == ["Order.Paid"]


def test_an_unknown_event_type_is_refused_and_nothing_stored() -> None:
    client = client_of()
    answer = client.post(ROOT, {"name": "till", "event_types": ["Nothing"]}, content_type="application/json")
    assert (answer.status_code, [error["pointer"] for error in answer.json()["errors"]]) == (400, ["#/event_types"])
    assert client.get(ROOT).json()["items"] == []


def test_a_publisher_is_renamed_unless_the_name_is_taken() -> None:
    factories.publisher("till"), factories.publisher("shop")
    client = client_of()
    taken = client.patch(f"{ROOT}/till", {"name": "shop"}, content_type="application/json")
    free = client.patch(f"{ROOT}/till", {"name": "desk"}, content_type="application/json")
    assert [(answer.status_code, answer.json().get("code")) for answer in (taken, free)] == [
        (409, "name_taken"),
        (200, None),
    ]


def test_a_publisher_is_deleted_with_its_keys() -> None:
    own = client_of(factories.publisher("till"))
    assert client_of().delete(f"{ROOT}/till").status_code == 204
    assert own.get(ROOT).status_code == 401
