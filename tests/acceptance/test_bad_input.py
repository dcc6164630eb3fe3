"""Whatever comes in over real HTTP: a problem document with a stable code, never a 5xx, and nothing stored."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.bad_input import bodies, configuring, fetching, fields, publishing, reading
from tests.bad_input.rows import Row, text
from tests.bad_input.shops import Shop, shop_at
from tests.bad_input.wire import Answer
from tests.real_broker import Broker

pytestmark = pytest.mark.faults

FEWEST_FIELDS = 90
"""A walk that found fewer would miss some."""


@pytest.fixture(scope="module")
def shop(broker: Broker) -> Iterator[Shop]:
    with shop_at(broker) as opened:
        yield opened


@pytest.fixture(scope="module")
def document(broker: Broker) -> dict[str, Any]:
    """Return the OpenAPI document."""
    found: dict[str, Any] = broker.get("openapi.json")
    return found


def test_every_operation_that_takes_a_body_stands_in_the_table(document: dict[str, Any]) -> None:
    known = {
        (method.upper(), path.removeprefix("/api/v1/"))
        for path, operations in document["paths"].items()
        for method in operations
        if method != "get"
    }
    assert known == bodies.OPERATIONS.keys()


@pytest.mark.parametrize("operation", bodies.OPERATIONS, ids=" ".join)
def test_a_body_that_cannot_be_meant_is_refused(shop: Shop, operation: tuple[str, str]) -> None:
    rows = bodies.rows_of(operation)
    assert {row.what: shop.ask(row).problem for row in rows} == {row.what: (row.status, row.code) for row in rows}
    shop.assert_unchanged()


def test_no_field_takes_what_it_is_not_meant_for(shop: Shop, document: dict[str, Any]) -> None:
    found = [*fields.fields_in(document)]
    assert len(found) > FEWEST_FIELDS
    wrong = {str(one): answers for one in found if (answers := not_refused(shop, one))}
    assert wrong == {}
    shop.assert_unchanged()


def not_refused(shop: Shop, one: fields.Field) -> dict[str, tuple[int, str]]:
    """Return how the field answers what it does not refuse, or not for itself."""
    answered = {row.what: (row, shop.ask(row)) for row in one.rows()}
    return {
        what: (answer.status, answer.body.decode()[:200])
        for what, (row, answer) in answered.items()
        if answer.problem != (row.status, row.code) or (row.code == "invalid" and not names(answer, one.name))
    }


def names(answer: Answer, field: str) -> bool:
    """Tell whether an answer finds something wrong with that field."""
    return any(f"{error['pointer']}/".startswith(f"#/{field}/") for error in answer.json["errors"])


@pytest.mark.parametrize("row", [*publishing.ROWS, *configuring.ROWS, *fetching.ROWS, *reading.ROWS], ids=str)
def test_bad_input_is_refused(shop: Shop, row: Row) -> None:
    assert shop.refusal(row) == (row.status, row.code)


@pytest.mark.behaviour("9.4")
@pytest.mark.behaviour("9.2")
def test_a_receipt_counts_once_and_in_its_own_mailbox_only(shop: Shop) -> None:
    shop.call(f"events/{shop.names['topic']}", {"n": 2})
    (fetched, returned) = shop.call(f"mailboxes/{shop.names['mailbox']}/next", {}, key="subscriber")["messages"]

    def answer(call: str, receipt: str, key: str = "subscriber", box: str = "mailbox") -> tuple[int, str]:
        row = Row(call, "POST", f"/api/v1/mailboxes/<{box}>/{call}", 0, "", body=text({"receipt": receipt}), key=key)
        said = shop.ask(row)
        return said.status, said.json["code"]

    asked = [
        answer("ack", fetched["receipt"], "neighbour", "neighbour"),
        answer("ack", fetched["receipt"], "neighbour"),
        answer("ack", fetched["receipt"]),
        answer("ack", fetched["receipt"]),
        answer("nack", fetched["receipt"]),
        answer("nack", returned["receipt"]),
        answer("ack", returned["receipt"]),
    ]
    assert asked == [
        (404, "unknown_receipt"),
        (404, "not_found"),
        (200, "acknowledged"),
        (200, "acknowledged"),
        (409, "acknowledged"),
        (200, "returned"),
        (409, "returned"),
    ]


@pytest.mark.behaviour("2.5")
@pytest.mark.behaviour("3.1")
def test_a_key_that_stands_twice_is_kept_and_filters_see_the_last(shop: Shop) -> None:
    event_type, path = shop.broker.event_type("Bad.Twice"), "$$->'Body'->>'a'"
    wanted = [shop.broker.subscribe("", event_type, delivery_mode="PULL", filter=f"{path} = '{n}'") for n in (1, 2)]
    body = b'{"a": 1,  "a": 2, "b": 1e400}'
    answer = shop.ask(Row("twice", "POST", f"/api/v1/events/{event_type}", 202, "", body=body))
    assert (answer.status, answer.json["deliveries"]) == (202, 1)
    stored = shop.broker.get(f"messages/{answer.json['id']}")
    assert stored["body"].encode() == body
    assert [one["subscriber"] for one in stored["deliveries"]] == [wanted[1].name]
