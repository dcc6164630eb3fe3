"""What every operation of the API does: problem documents, pages, versions, and its OpenAPI document."""

import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from jsonschema_rs import Draft202012Validator

from broker_project.core.api import openapi
from broker_project.stack.load.wait import PATIENCE_SECONDS
from subscriptions.models import EventType, Scope, Subscriber
from tests.support import factories
from tests.support.api import api_document, client_of, problem_of, publish
from tests.support.bad_input.rows import ROWS
from tests.support.bad_input.shop import Row

JSON = "application/json"
SUBSCRIBERS = "/api/v1/subscribers"

pytestmark = pytest.mark.django_db

EVENT_TYPES = "/api/v1/event-types"

MAX_BODY_BYTES = 1024 * 1024

PUBLISHERS = "/api/v1/publishers"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return api_document()


def test_the_openapi_document_is_valid_and_has_no_warnings() -> None:
    call_command("spectacular", "--fail-on-warn", "--validate", "--format", "openapi-json", stdout=io.StringIO())


def test_the_document_is_served_to_everybody() -> None:
    answer = Client().get("/api/v1/openapi.json")
    document = answer.json()
    assert (answer.status_code, document["openapi"]) == (200, "3.1.0")
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    again = Client().get("/api/v1/openapi.json", headers={"If-None-Match": answer["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert Client().get("/api/v1/openapi.yaml").content.startswith(b"openapi: 3.1.0\n")


def test_many_may_ask_for_the_document_at_once() -> None:
    openapi._made.cache_clear()
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: Client().get("/api/v1/openapi.json").status_code, range(16)))
    assert answers == [200] * 16
    assert openapi._made.cache_info().misses == 1


def test_every_operation_documents_its_scope_and_its_problems(document: dict[str, Any]) -> None:
    operations = operations_of(document)
    operations.remove(by_token := document["paths"]["/api/v1/callbacks/{token}"]["post"])
    assert "security" not in by_token, "the address itself is the key"
    scopes = {f"[{{'apiKey': ['{scope}']}}]" for scope in Scope.values}
    assert {str(operation["security"]) for operation in operations} == scopes
    assert all(
        f"Takes a key with the scope `{one['security'][0]['apiKey'][0]}`." in one["description"] for one in operations
    )
    assert {str(operation["responses"]["default"]) for operation in operations} == {
        "{'$ref': '#/components/responses/problem'}"
    }
    assert [*document["components"]["responses"]["problem"]["content"]] == ["application/problem+json"]


def operations_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for operations in document["paths"].values() for one in operations.values()]


def test_every_operation_has_a_short_summary_that_names_what_it_is_about(document: dict[str, Any]) -> None:
    summaries = [one["summary"] for one in operations_of(document)]
    assert all(0 < len(one) < 90 and one[-1].isalnum() for one in summaries)
    assert [one for one in summaries if {"it", "its", "one", "them", "record", "records"} & {*one.split()}] == []
    assert "behaviour" not in str(document)


def test_operation_ids_are_a_verb_and_a_noun(document: dict[str, Any]) -> None:
    found = [one["operationId"] for one in operations_of(document)]
    assert len({*found}) == len(found)
    assert {"list_deliveries", "read_retry_policy", "update_event_type", "revoke_api_key"} < {*found}
    assert {name.split("_")[-1] for name in found} & {"create", "list", "retrieve", "update", "destroy"} == set()


def test_operations_are_grouped_in_the_order_of_use(document: dict[str, Any]) -> None:
    tags = [tag["name"] for tag in document["tags"]]
    assert all(tag["description"] for tag in document["tags"])
    assert {name for one in operations_of(document) for name in one["tags"]} == {*tags}
    first = operations_of(document)[0]
    assert (tags[0], first["operationId"], first["parameters"][0]["name"]) == ("events", "publish_event", "event_type")


def documented_codes(document: dict[str, Any], row: Row) -> Any:
    """Return the codes that the operation documents for the row's status, or None if the document does not have it."""
    path = row.path.partition("?")[0]
    for template, operations in document["paths"].items():
        if row.method.lower() in operations and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/%]+", re.escape(template)), path):
            answer = operations[row.method.lower()]["responses"].get(str(row.status), {})
            return answer.get("$ref", "").rpartition("/")[2].split(".")
    return None


def test_operations_document_the_problems_that_bad_input_is_answered_with(document: dict[str, Any]) -> None:
    asked = [(row, documented_codes(document, row)) for row in ROWS if "{" not in row.path]
    assert len([row for row, codes in asked if codes]) > 100
    on_any = {"ambiguous_host", "unknown_host", "repeated_header", "unreadable_header", "incomplete_body"}
    ours = on_any | {"method_not_allowed"}
    assert {(str(row), row.code) for row, codes in asked if codes and row.code not in {*codes, *ours}} == set()


def test_examples_are_everywhere_and_fit(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    examples = {name: schema["examples"] for name, schema in schemas.items() if "examples" in schema}
    assert {name for name, schema in schemas.items() if schema.get("type") == "object"} <= {*examples}
    for name, (example,) in examples.items():
        whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
        assert [(name, str(one)) for one in Draft202012Validator(whole).iter_errors(example)] == []


@pytest.mark.parametrize("answer", ["AcceptedEvent", "Delivery", "PaginatedSubscriptionList"])
def test_examples_of_answers_are_lifelike(document: dict[str, Any], answer: str) -> None:
    (example,) = document["components"]["schemas"][answer]["examples"]
    assert {
        "AcceptedEvent": {"id": 2611200000000001, "outcome": "ROUTED", "deliveries": 1},
        "Delivery": {**example, "subscriber": "warehouse", "status": "DELIVERED", "attempts": 1, "due_at": None},
        "PaginatedSubscriptionList": {**example, "next": None, "previous": None},
    }[answer] == example


def test_example_requests_are_accepted(document: dict[str, Any], management: Client) -> None:
    for path, status in {
        "event-types": 201,
        "publishers": 201,
        "subscribers": 201,
        "retry-policies": 201,
        "subscriptions": 201,
        "api-keys": 201,
        "events": 202,
        "filters/test": 200,
        "scripts/test": 200,
        "replays": 200,
    }.items():
        schema = document["paths"][f"/api/v1/{path}"]["post"]["requestBody"]["content"][JSON]["schema"]
        (example,) = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]["examples"]
        answer = management.post(f"/api/v1/{path}", example)
        assert (path, answer.status_code) == (path, status), answer.content
    schema = document["paths"]["/api/v1/events/{event_type}"]["post"]["requestBody"]["content"][JSON]["schema"]
    answer = publish(management, json.dumps(schema["examples"][0]).encode())
    assert answer.json()["deliveries"] == 1


def test_the_type_of_a_problem_is_its_row_in_a_page(document: dict[str, Any]) -> None:
    kind = client_of().get(f"{PUBLISHERS}/nobody").json()["type"]
    page = Client().get(kind)
    assert (page.status_code, kind.partition("#")[2]) == (200, "not_found")
    codes = re.findall(r'<tr id="(\w+)">', page.content.decode())
    named = {code for name in document["components"]["responses"] for code in name.split(".")} - {"problem"}
    assert len(named) > 40
    assert named - {*codes} == set()


@pytest.mark.parametrize(
    ("path", "content_types"),
    [
        ("/api/v1/events/{event_type}", ["application/json", "application/cloudevents+json", "*/*"]),
        (
            "/api/v1/events",
            ["application/json", "application/cloudevents-batch+json", "application/cloudevents+json", "*/*"],
        ),
    ],
)
def test_publishing_documents_its_content_types(document: dict[str, Any], path: str, content_types: list[str]) -> None:
    operation = document["paths"][path]["post"]
    assert sorted(operation["requestBody"]["content"]) == sorted(content_types)
    assert "Broker-Durability" in {parameter["name"] for parameter in operation["parameters"]}


@pytest.mark.parametrize("method", ["patch", "delete"])
def test_changes_document_if_match(document: dict[str, Any], method: str) -> None:
    operation = document["paths"]["/api/v1/subscriptions/{id}"][method]
    assert "If-Match" in {parameter["name"] for parameter in operation["parameters"]}


@pytest.mark.parametrize("file", ["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"])
def test_files_of_the_documentation_are_served_by_the_broker(file: str) -> None:
    answer = Client().get(f"/static/drf_spectacular_sidecar/swagger-ui-dist/{file}")
    assert (answer.status_code, len(answer.getvalue()) > 0) == (200, True)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("ReceiptsRequest", ["receipt", "receipts"]),
        ("ExtendedRequest", ["receipt", "receipts"]),
        ("Fetched", ["body", "body_base64"]),
    ],
)
def test_exclusive_fields_are_documented(document: dict[str, Any], schema: str, names: list[str]) -> None:
    assert document["components"]["schemas"][schema]["oneOf"] == [{"required": [name]} for name in names]


@pytest.mark.behaviour("9.4")
@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_the_refusal_of_one_receipt_documents_its_delivery_status(document: dict[str, Any], call: str) -> None:
    answers = document["paths"][f"/api/v1/mailboxes/{{name}}/{call}"]["post"]["responses"]
    for status in ("404", "409"):
        problem, more = answers[status]["content"]["application/problem+json"]["schema"]["allOf"]
        assert problem == {"$ref": "#/components/schemas/Problem"}
        assert [*more["properties"]] == ["receipt", "delivery_status"]
    assert "`stale_receipt`" in answers["409"]["description"]


@pytest.mark.behaviour("9.1")
def test_a_poll_that_may_not_wait_documents_retry_after(document: dict[str, Any]) -> None:
    operation = document["paths"]["/api/v1/mailboxes/{name}/next"]["post"]
    assert operation["responses"]["204"]["headers"]["Retry-After"]["schema"] == {"type": "integer"}


def test_every_operation_documents_limits_and_rate_headers(document: dict[str, Any]) -> None:
    for path, operations in document["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            expected = {"429", "431", "503"} | ({"408", "413"} if "requestBody" in operation else set())
            assert expected <= {*answers}, path
            told = [one.get("headers", {}) for one in answers.values() if "$ref" not in one]
            assert {"RateLimit" in headers for headers in told} == {"security" in operation}, path
    assert {*document["components"]["responses"]["too_many_requests"]["headers"]} >= {"RateLimit", "Retry-After"}


@pytest.mark.parametrize("tag", ['"1"', '"7", "1"', "*"])
def test_a_change_goes_through_if_the_version_still_holds(tag: str) -> None:
    factories.subscriber("shop")
    answer = client_of().patch(f"{SUBSCRIBERS}/shop", {"description": "x"}, headers={"If-Match": tag})
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')


@pytest.mark.parametrize("tag", ['"2"', 'W/"1"', "1", '"x"', "", '"' + "9" * 5000 + '"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE", "activate", "inactivate"])
def test_changes_are_refused_at_another_version(method: str, tag: str) -> None:
    before = factories.subscriber("shop")
    action = "" if method.isupper() else f"/{method}"
    answer = client_of().generic(
        "POST" if action else method, f"{SUBSCRIBERS}/shop{action}", "{}", JSON, headers={"If-Match": tag}
    )
    assert problem_of(answer) == (412, "version_mismatch")
    assert Subscriber.objects.values().get() == Subscriber.objects.filter(version=before.version).values().get()


@pytest.mark.django_db(transaction=True)
def test_exactly_one_of_many_changes_of_one_version_succeeds() -> None:
    factories.subscriber("shop")
    clients = [client_of() for _ in range(8)]
    together = Barrier(len(clients))

    def change(client: Client, number: int) -> int:
        together.wait(timeout=PATIENCE_SECONDS)
        body = {"max_queued_to_send": 100 + number}
        try:
            return client.patch(f"{SUBSCRIBERS}/shop", body, headers={"If-Match": '"1"'}).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(len(clients)) as threads:
        statuses = sorted(threads.map(change, clients, range(len(clients))))
    assert statuses == [200] + [412] * 7
    assert Subscriber.objects.get().version == 2


@pytest.mark.parametrize(
    ("body", "code"),
    [(b"", "invalid"), (b"{", "malformed_body"), (b"[]", "invalid"), (b'{"name": "A", "version": 7}', "invalid")],
)
def test_a_broken_body_is_refused_and_nothing_stored(body: bytes, code: str) -> None:
    assert problem_of(client_of().post(EVENT_TYPES, body)) == (400, code)
    assert EventType.objects.configured().count() == 0


@pytest.mark.parametrize(("size", "status"), [(MAX_BODY_BYTES, 201), (MAX_BODY_BYTES + 1, 413), (6 * 1024 * 1024, 413)])
def test_a_body_has_at_most_a_mebibyte(size: int, status: int) -> None:
    empty = b'{"name": "A", "description": ""}'
    body = empty.replace(b'""', b'"' + b"x" * (size - len(empty)) + b'"')
    answer = client_of().post(EVENT_TYPES, body)
    assert (answer.status_code, answer.json().get("code")) == (status, None if status == 201 else "body_too_large")


def test_a_body_of_unknown_length_is_refused_instead_of_taken_for_empty() -> None:
    headers = {"Transfer-Encoding": "chunked"}
    answer = client_of().generic("POST", EVENT_TYPES, b"", JSON, headers=headers)
    assert problem_of(answer) == (411, "length_required")


@pytest.mark.parametrize("length", ["abc", "-5", "1e3"])
def test_an_invalid_content_length_counts_as_no_body(length: str) -> None:
    answer = client_of().generic("POST", EVENT_TYPES, b'{"name": "A"}', JSON, CONTENT_LENGTH=length)
    assert problem_of(answer)[0] == 400


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (EVENT_TYPES, "GET, HEAD, POST"),
        ("/api/v1/events", "POST"),
        ("/api/v1/messages/1/explanation", "GET, HEAD"),
        ("/api/v1/callbacks/token", "POST"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "TRACE", "LINK"])
def test_another_method_is_refused(method: str, path: str, allowed: str) -> None:
    answer = client_of().generic(method, path, "{}", JSON)
    assert problem_of(answer) == (405, "method_not_allowed")
    assert answer["Allow"] == allowed


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "nonsense", "*/*", ""])
def test_the_answer_is_json_for_any_accept_header(accept: str) -> None:
    answer = client_of().get(EVENT_TYPES, headers={"Accept": accept})
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")


@pytest.mark.parametrize("host", ["elsewhere.example", "a b", "testserver.elsewhere.example", "testserver@elsewhere"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", EVENT_TYPES), ("GET", "/api/v1/openapi.json"), ("POST", "/api/v1/events"), ("POST", "/api/v1/events/Any")],
)
def test_requests_for_another_host_are_refused(method: str, path: str, host: str) -> None:
    answer = client_of().generic(method, path, "{}", JSON, headers={"Host": host})
    assert problem_of(answer) == (400, "unknown_host")


def test_probes_know_a_process_by_its_address() -> None:
    assert Client().get("/livez", headers={"Host": "10.0.0.7:8000"}).status_code == 200
    assert Client().get("/api/docs/", headers={"Host": "10.0.0.7:8000"}).status_code == 400


@pytest.fixture
def names() -> list[str]:
    made = [f"publisher-{letter}" for letter in "abcdefg"]
    for name in reversed(made):
        factories.publisher(name)
    return made


def test_pages_follow_one_another_and_lead_back(management: Client, names: list[str]) -> None:
    pages, address = [], f"{PUBLISHERS}?limit=3"
    while address:
        page = management.get(address).json()
        pages.append([item["name"] for item in page["items"]])
        last, address = page, page["next"]
    assert pages == [names[:3], names[3:6], names[6:]]
    back = management.get(last["previous"]).json()
    assert [item["name"] for item in back["items"]] == names[3:6]
    first = management.get(back["previous"]).json()
    assert [item["name"] for item in first["items"]] == names[:3]
    assert first["previous"] is None
    assert [item["name"] for item in management.get(first["next"]).json()["items"]] == names[3:6]


def test_records_created_or_deleted_meanwhile_do_not_move_others(management: Client, names: list[str]) -> None:
    first = management.get(f"{PUBLISHERS}?limit=3").json()
    factories.publisher("publisher-aa")
    management.delete(f"{PUBLISHERS}/publisher-c")
    second = management.get(first["next"]).json()
    assert [item["name"] for item in second["items"]] == names[3:6]


def test_neighbours_are_also_in_the_link_header(management: Client, names: list[str]) -> None:
    answer = management.get(management.get(f"{PUBLISHERS}?limit=3").json()["next"])
    body = answer.json()
    assert answer["Link"] == f'<{body["next"]}>; rel="next", <{body["previous"]}>; rel="prev"'
    assert parse_qs(urlsplit(body["next"]).query)["limit"] == ["3"]


def test_a_whole_list_on_one_page_has_no_neighbours(names: list[str]) -> None:
    answer = client_of().get(PUBLISHERS)
    assert ("Link" in answer, answer.json()["next"], answer.json()["previous"]) == (False, None, None)


@pytest.mark.parametrize(
    ("query", "parameter", "code", "detail"),
    [
        ("limit=0", "limit", "min_value", "Ensure this value is greater than or equal to 1."),
        ("cursor=garbage", "cursor", "invalid", "This cursor does not belong to this list. Start without a cursor."),
        ("limit=1&limit=2", "limit", "invalid", "Give this query parameter once."),
        ("status=ACTIVE", "status", "unknown_field", "There is no such query parameter."),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(query: str, parameter: str, code: str, detail: str) -> None:
    answer = client_of().get(f"{PUBLISHERS}?{query}")
    assert problem_of(answer) == (400, "invalid_query")
    assert answer.json()["errors"] == [{"parameter": parameter, "code": code, "detail": detail}]
