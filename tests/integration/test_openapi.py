"""The OpenAPI document, and the page that shows it."""

import io

import pytest
from django.core.management import call_command
from django.test import Client


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
    assert {str(operation["security"]) for operation in operations} == {"[{'apiKey': []}]"}
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
