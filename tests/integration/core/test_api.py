"""What every operation of the API does: problem documents, pages, versions, and its OpenAPI document."""

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client

from subscriptions.models import Scope, Subscriber, Subscription
from tests.support import factories
from tests.support.api import client_of
from tests.support.receiver import PATIENCE

JSON = "application/json"
SUBSCRIBERS = "/api/v1/subscribers"


def test_the_document_is_made_without_warnings_and_is_valid() -> None:
    call_command("spectacular", "--fail-on-warn", "--validate", "--format", "openapi-json", stdout=io.StringIO())


def test_the_document_is_served_to_everybody() -> None:
    answer = Client().get("/api/v1/openapi.json")
    document = answer.json()
    assert (answer.status_code, document["openapi"]) == (200, "3.1.0")
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"


def test_every_operation_takes_a_key_and_says_what_a_problem_looks_like() -> None:
    paths = Client().get("/api/v1/openapi.json").json()["paths"]
    by_token = paths.pop("/api/v1/callbacks/{token}")["post"]
    assert "security" not in by_token, "the address itself is the key"
    operations = [operation for operations in paths.values() for operation in operations.values()]
    assert {str(operation["security"]) for operation in operations} == {
        f"[{{'apiKey': ['{scope}']}}]" for scope in Scope.values
    }
    assert all(
        f"Takes a key with the scope `{one['security'][0]['apiKey'][0]}`." in one["description"] for one in operations
    )
    assert {str(list(operation["responses"]["default"]["content"])) for operation in operations} == {
        "['application/problem+json']"
    }


def test_every_operation_says_in_short_what_it_does_and_nothing_of_how_it_was_built() -> None:
    answer = Client().get("/api/v1/openapi.json")
    operations = [one for operations in answer.json()["paths"].values() for one in operations.values()]
    assert all(0 < len(one["summary"]) < 90 and one["summary"][-1].isalnum() for one in operations)
    assert "behaviour" not in answer.content.decode()


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
def test_publishing_says_in_which_forms_it_takes_events(path: str, content_types: list[str]) -> None:
    operation = Client().get("/api/v1/openapi.json").json()["paths"][path]["post"]
    assert sorted(operation["requestBody"]["content"]) == sorted(content_types)
    assert "Broker-Durability" in {parameter["name"] for parameter in operation["parameters"]}


@pytest.mark.parametrize("method", ["patch", "delete"])
def test_whatever_changes_a_version_takes_if_match(method: str) -> None:
    paths = Client().get("/api/v1/openapi.json").json()["paths"]
    operation = paths["/api/v1/subscriptions/{id}"][method]
    assert "If-Match" in {parameter["name"] for parameter in operation["parameters"]}


def test_the_documentation_needs_nothing_from_elsewhere() -> None:
    answer = Client().get("/api/docs/")
    page = answer.content.decode()
    assert answer.status_code == 200
    assert "/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js" in page
    assert [word for word in page.replace('"', " ").split() if word.startswith(("http:", "https:", "//cdn"))] == []


@pytest.mark.parametrize("file", ["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"])
def test_its_files_are_served_by_the_broker_itself(file: str) -> None:
    answer = Client().get(f"/static/drf_spectacular_sidecar/swagger-ui-dist/{file}")
    assert (answer.status_code, len(answer.getvalue()) > 0) == (200, True)


@pytest.mark.parametrize(
    ("schema", "names"),
    [
        ("ReceiptsRequest", ["receipt", "receipts"]),
        ("ProlongedRequest", ["receipt", "receipts"]),
        ("Fetched", ["body", "body_base64"]),
    ],
)
def test_of_some_fields_exactly_one_is_there(schema: str, names: list[str]) -> None:
    schemas = Client().get("/api/v1/openapi.json").json()["components"]["schemas"]
    assert schemas[schema]["oneOf"] == [{"required": [name]} for name in names]


@pytest.mark.behaviour("9.4")
@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
def test_what_one_receipt_is_refused_with_names_it_and_says_where_its_delivery_stands(call: str) -> None:
    paths = Client().get("/api/v1/openapi.json").json()["paths"]
    answers = paths[f"/api/v1/mailboxes/{{name}}/{call}"]["post"]["responses"]
    for status in ("404", "409"):
        problem, more = answers[status]["content"]["application/problem+json"]["schema"]["allOf"]
        assert problem == {"$ref": "#/components/schemas/Problem"}
        assert [*more["properties"]] == ["receipt", "delivery_status"]
    assert "`stale_receipt`" in answers["409"]["description"]


@pytest.mark.behaviour("9.1")
def test_a_poll_that_may_not_wait_is_told_when_to_come_again() -> None:
    operation = Client().get("/api/v1/openapi.json").json()["paths"]["/api/v1/mailboxes/{name}/next"]["post"]
    assert operation["responses"]["204"]["headers"]["Retry-After"]["schema"] == {"type": "integer"}


def test_every_operation_says_what_limits_answer_and_how_a_key_stands() -> None:
    document = Client().get("/api/v1/openapi.json").json()
    for path, operations in document["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            expected = {"429", "431", "503"} | ({"408", "413"} if "requestBody" in operation else set())
            assert expected <= {*answers}, path
            told = [one.get("headers", {}) for one in answers.values() if "$ref" not in one]
            assert {"RateLimit" in headers for headers in told} == {"security" in operation}, path
    assert {*document["components"]["responses"]["TooManyRequests"]["headers"]} >= {"RateLimit", "Retry-After"}


@pytest.mark.django_db
@pytest.mark.parametrize("tag", ['"1"', '"7", "1"', "*"])
def test_a_change_goes_through_if_the_version_still_holds(tag: str) -> None:
    factories.subscriber("shop")
    answer = client_of().patch(
        f"{SUBSCRIBERS}/shop", {"description": "x"}, content_type=JSON, headers={"If-Match": tag}
    )
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')


@pytest.mark.django_db
@pytest.mark.parametrize("tag", ['"2"', 'W/"1"', "1", '"x"', "", '"' + "9" * 5000 + '"'])
@pytest.mark.parametrize("method", ["PATCH", "DELETE", "activate", "inactivate"])
def test_whatever_would_change_it_is_refused_at_another_version(method: str, tag: str) -> None:
    before = factories.subscriber("shop")
    action = "" if method.isupper() else f"/{method}"
    answer = client_of().generic(
        "POST" if action else method, f"{SUBSCRIBERS}/shop{action}", "{}", JSON, headers={"If-Match": tag}
    )
    assert (answer.status_code, answer.json()["code"]) == (412, "version_mismatch")
    assert Subscriber.objects.values().get() == Subscriber.objects.filter(version=before.version).values().get()


@pytest.mark.django_db
@pytest.mark.parametrize("action", ["rotate-secret", "activate"])
def test_actions_on_subscriptions_check_the_version_too(action: str) -> None:
    made = factories.subscription()
    headers = {"If-Match": '"9"'}
    answer = client_of().post(f"/api/v1/subscriptions/{made.pk}/{action}", content_type=JSON, headers=headers)
    assert (answer.status_code, Subscription.objects.get().signing_secret) == (412, made.signing_secret)


@pytest.mark.django_db(transaction=True)
def test_of_many_changes_of_one_version_exactly_one_goes_through() -> None:
    factories.subscriber("shop")
    clients = [client_of() for _ in range(8)]
    together = Barrier(len(clients))

    def change(client: Client, number: int) -> int:
        together.wait(timeout=PATIENCE)
        body = {"max_queued_to_send": 100 + number}
        try:
            return client.patch(f"{SUBSCRIBERS}/shop", body, content_type=JSON, headers={"If-Match": '"1"'}).status_code
        finally:
            connection.close()

    with ThreadPoolExecutor(len(clients)) as threads:
        statuses = sorted(threads.map(change, clients, range(len(clients))))
    assert statuses == [200] + [412] * 7
    assert Subscriber.objects.get().version == 2
