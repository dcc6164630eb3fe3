"""Bad input over real HTTP, from tables and from the OpenAPI document: a problem document, and nothing stored."""

from collections.abc import Iterator
from typing import Any, Final

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from delivery.api.mailboxes import MAX_WAIT_SECONDS
from tests.support.bad_input import bodies
from tests.support.bad_input.rows import ROWS
from tests.support.bad_input.shop import Row, Shop, nested, shop_at
from tests.support.raw_http import Answer
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

pytestmark = pytest.mark.faults

MIN_FIELDS = 90
"""The document has at least as many."""


def without_examples(document: Any) -> Any:
    """Return the document without its examples, which are good input: what they name is created by other tests."""
    if isinstance(document, list):
        return [without_examples(one) for one in document]
    if not isinstance(document, dict):
        return document
    return {name: without_examples(one) for name, one in document.items() if name not in {"example", "examples"}}


SCHEMA: Final = schemathesis.openapi.from_dict(without_examples(bodies.DOCUMENT))
FOUND: Final = [one.ok() for one in SCHEMA.get_all_operations() if isinstance(one, Ok)]
OPERATIONS: Final = {str(one.definition.raw["operationId"]): one for one in FOUND}


HOLDERS: Final = ("management", "publisher", "subscriber", "")
NEVER_MANAGED: Final = {"revoke_api_key", "rotate_api_key", "create_summary_run"}
"""With a management key these could revoke the keys of this run, or start Spark for each example."""
LEFT: Final = {"delete_event_type", "delete_publisher", "delete_retry_policy", "delete_subscriber"}
"""Only unknown names are deleted, because other operations need the objects."""


@pytest.fixture(scope="module")
def shop(broker: Broker) -> Iterator[Shop]:
    with shop_at(broker) as opened:
        yield opened


@pytest.mark.parametrize("operation", bodies.OPERATIONS, ids=" ".join)
def test_invalid_bodies_are_refused(shop: Shop, operation: tuple[str, str]) -> None:
    rows = bodies.rows_of(operation)
    assert {row.what: shop.ask(row).problem for row in rows} == {row.what: (row.status, row.code) for row in rows}
    shop.assert_unchanged()


def test_no_field_accepts_values_of_another_type(shop: Shop) -> None:
    found = [*bodies.fields()]
    assert len(found) > MIN_FIELDS
    wrong = {str(one): answers for one in found if (answers := not_refused(shop, one))}
    assert wrong == {}
    shop.assert_unchanged()


def not_refused(shop: Shop, one: bodies.Field) -> dict[str, tuple[int, str]]:
    """Return the answers to wrong values that are accepted, or refused for another field."""
    answered = {row.what: (row, shop.ask(row)) for row in one.rows()}
    return {
        what: (answer.status, answer.body.decode()[:200])
        for what, (row, answer) in answered.items()
        if answer.problem != (row.status, row.code) or (row.code == "invalid" and not names(answer, one.name))
    }


def names(answer: Answer, field: str) -> bool:
    """Return whether an answer reports an error of that field."""
    return any(f"{error['pointer']}/".startswith(f"#/{field}/") for error in answer.json["errors"])


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_bad_input_is_refused(shop: Shop, row: Row) -> None:
    assert shop.refusal(row) == (row.status, row.code)


@pytest.mark.behaviour("2.5", "3.1")
def test_a_duplicate_key_is_kept_and_filters_see_the_last(shop: Shop) -> None:
    event_type, path = shop.broker.event_type("Bad.Twice"), "$$->'Body'->>'a'"
    wanted = [shop.broker.subscribe("", event_type, delivery_mode="PULL", filter=f"{path} = '{n}'") for n in (1, 2)]
    body = b'{"a": 1,  "a": 2, "b": 1e400}'
    answer = shop.ask(Row("twice", "POST", f"/api/v1/events/{event_type}", 202, "", body=body))
    assert (answer.status, answer.json["deliveries"]) == (202, 1)
    stored = shop.broker.get(f"messages/{answer.json['id']}")
    assert stored["body"].encode() == body
    assert [one["subscriber"] for one in stored["deliveries"]] == [wanted[1].name]


@pytest.mark.parametrize("body", [nested(100_000), b'{"a":' * 100_000 + b"1" + b"}" * 100_000])
def test_bodies_of_other_content_types_have_no_maximum_depth(shop: Shop, body: bytes) -> None:
    row = Row("deep", "POST", "/api/v1/events/<plain>", 202, "", body=body, headers={"Content-Type": "text/plain"})
    assert shop.ask(row).status == row.status


CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]


def there(shop: Shop, path: str) -> dict[str, str]:
    """Return path parameters that name existing objects."""
    names = {"event-types": "topic", "publishers": "publisher", "retry-policies": "policy"}
    ids = {"messages": "message", "deliveries": "delivery", "replays": "replay"}
    ids |= {"subscriptions": "subscription", "summary-runs": "run"}
    resource = path.split("/")[3]
    found = {
        "name": shop.names.get(names.get(resource, "mailbox"), "") if resource != "summaries" else "volume",
        "id": shop.names.get(ids.get(resource, "key of neighbour"), ""),
        "event_type": shop.names["topic"],
        "suffix": "csv",
    }
    return {name: value for name, value in found.items() if f"{{{name}}}" in path}


def test_every_operation_can_be_tested() -> None:
    assert all(isinstance(one, Ok) for one in SCHEMA.get_all_operations())


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_answer_is_as_documented(shop: Shop, name: str, request: pytest.FixtureRequest) -> None:
    operation, session = OPERATIONS[name], requests.Session()
    allowed, others = (operation.as_strategy(mode) for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE))
    holders = HOLDERS[1:] if name in NEVER_MANAGED else HOLDERS

    @hypothesis.settings(
        max_examples=request.config.getoption("--fuzz"), suppress_health_check=[*hypothesis.HealthCheck], database=None
    )
    @hypothesis.given(case=allowed | others, holder=st.sampled_from(holders), is_there=st.booleans())
    def ask(case: Any, holder: str, *, is_there: bool) -> None:
        if is_there and name not in LEFT:
            case.path_parameters |= there(shop, operation.path)
        match case.body:
            case {"wait_seconds": int() | float() as seconds} if 1 < seconds <= MAX_WAIT_SECONDS:
                case.body["wait_seconds"] = 1  # nothing comes, however long it waits
        key = {"Authorization": f"Bearer {shop.keys[holder]}"} if holder else {}
        answer = case.call(shop.broker.web, session, headers=key, timeout=TIMEOUT_SECONDS)
        case.validate_response(answer, checks=CHECKS)

    ask()
    session.close()
