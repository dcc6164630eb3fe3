"""Lists a page at a time."""

from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support import factories
from tests.support.api import client_of

pytestmark = pytest.mark.django_db

PUBLISHERS = "/api/v1/publishers"


@pytest.fixture
def names() -> list[str]:
    made = [f"publisher-{letter}" for letter in "abcdefg"]
    for name in reversed(made):
        factories.publisher(name)
    return made


def test_pages_follow_one_another_and_lead_back(names: list[str]) -> None:
    client = client_of()
    pages, address = [], f"{PUBLISHERS}?limit=3"
    while address:
        page = client.get(address).json()
        pages.append([item["name"] for item in page["items"]])
        last, address = page, page["next"]
    assert pages == [names[:3], names[3:6], names[6:]]
    back = client.get(last["previous"]).json()
    assert [item["name"] for item in back["items"]] == names[3:6]
    first = client.get(back["previous"]).json()
    assert [item["name"] for item in first["items"]] == names[:3]
    assert first["previous"] is None
    assert [item["name"] for item in client.get(first["next"]).json()["items"]] == names[3:6]


def test_what_is_created_or_deleted_meanwhile_moves_nothing_else(names: list[str]) -> None:
    client = client_of()
    first = client.get(f"{PUBLISHERS}?limit=3").json()
    factories.publisher("publisher-aa")
    client.delete(f"{PUBLISHERS}/publisher-c")
    second = client.get(first["next"]).json()
    assert [item["name"] for item in second["items"]] == names[3:6]


def test_neighbours_are_also_told_in_a_header(names: list[str]) -> None:
    client = client_of()
    answer = client.get(client.get(f"{PUBLISHERS}?limit=3").json()["next"])
    body = answer.json()
    assert answer["Link"] == f'<{body["next"]}>; rel="next", <{body["previous"]}>; rel="prev"'
    assert parse_qs(urlsplit(body["next"]).query)["limit"] == ["3"]


def test_a_whole_list_on_one_page_has_no_neighbours(names: list[str]) -> None:
    answer = client_of().get(PUBLISHERS)
    assert ("Link" in answer, answer.json()["next"], answer.json()["previous"]) == (False, None, None)


@pytest.mark.parametrize(
    ("query", "parameters"),
    [
        ("limit=0", ["limit"]),
        ("limit=-1", ["limit"]),
        ("limit=201", ["limit"]),
        ("limit=ten", ["limit"]),
        ("limit=1e1", ["limit"]),
        ("limit=" + "9" * 5000, ["limit"]),
        ("cursor=", ["cursor"]),
        ("cursor=garbage", ["cursor"]),
        ("cursor=-1", ["cursor"]),
        ("cursor=%00", ["cursor"]),
        ("cursor=%ff%fe", ["cursor"]),
        ("cursor=" + "x" * 2000, ["cursor"]),
        ("limit=1&limit=2", ["limit"]),
        ("page=2", ["page"]),
        ("status=ACTIVE", ["status"]),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(query: str, parameters: list[str]) -> None:
    answer = client_of().get(f"{PUBLISHERS}?{query}")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_query")
    assert [error["parameter"] for error in answer.json()["errors"]] == parameters


def test_a_cursor_of_another_list_is_refused(names: list[str]) -> None:
    client = client_of()
    cursor = parse_qs(urlsplit(client.get(f"{PUBLISHERS}?limit=3").json()["next"]).query)["cursor"][0]
    answer = client.get("/api/v1/subscribers", {"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_query")


@pytest.mark.parametrize("status", ["NEITHER", "", "active", "%00"])
def test_a_filter_that_makes_no_sense_is_refused(status: str) -> None:
    answer = client_of().get(f"/api/v1/subscriptions?status={status}")
    assert (answer.status_code, [error["parameter"] for error in answer.json()["errors"]]) == (400, ["status"])
