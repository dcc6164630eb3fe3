"""The OpenAPI document against the running server: no 5xx, and every answer as the document describes it.

What is asked is made up by schemathesis from the document: what it allows and what it does not, of what there is and of
what there is not, with each kind of key and without one. `--fuzz N` makes so many requests an operation.
"""

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

from tests.bad_input.shops import Shop, shop_at
from tests.clients import api_document
from tests.real_broker import TIMEOUT, Broker

pytestmark = pytest.mark.faults

SCHEMA: Final = schemathesis.openapi.from_dict(api_document())
FOUND: Final = [one.ok() for one in SCHEMA.get_all_operations() if isinstance(one, Ok)]
OPERATIONS: Final = {str(one.definition.raw["operationId"]): one for one in FOUND}
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
HOLDERS: Final = ("management", "publisher", "subscriber", "")
NEVER_MANAGED: Final = {"api_keys_revoke_create", "api_keys_rotate_create", "summary_runs_create"}
"""Management's key could end itself, or others of this run; and each run starts Spark."""
LEFT: Final = {"event_types_destroy", "publishers_destroy", "retry_policies_destroy", "subscribers_destroy"}
"""What would be deleted is asked for by names that nothing has: the others need it."""


@pytest.fixture(scope="module")
def shop(broker: Broker) -> Iterator[Shop]:
    with shop_at(broker) as opened:
        yield opened


def there(shop: Shop, path: str) -> dict[str, str]:
    """Return what the parameters of an address stand for where it is to be that of something."""
    names = {"event-types": "topic", "publishers": "publisher", "retry-policies": "policy"}
    ids = {"messages": "message", "deliveries": "delivery", "replays": "replay", "subscriptions": "subscription"}
    resource = path.split("/")[3]
    found = {
        "name": shop.names.get(names.get(resource, "mailbox"), "") if resource != "summaries" else "volume",
        "id": shop.names.get(ids.get(resource, "key of neighbour"), ""),
        "event_type": shop.names["topic"],
        "suffix": "csv",
    }
    return {name: value for name, value in found.items() if f"{{{name}}}" in path}


def test_every_operation_can_be_asked() -> None:
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
        key = {"Authorization": f"Bearer {shop.keys[holder]}"} if holder else {}
        answer = case.call(shop.broker.web, session, headers=key, timeout=TIMEOUT)
        case.validate_response(answer, checks=CHECKS)

    ask()
    session.close()
