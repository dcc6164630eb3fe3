"""Whatever is sent, the answer is a problem document, never a 500."""

import gzip

import pytest
from django.test import Client

from subscriptions.models import EventType
from tests.support.api import Answer, client_of

pytestmark = pytest.mark.django_db

EVENT_TYPES = "/api/v1/event-types"
JSON = "application/json"
MAX_BODY_BYTES = 1024 * 1024


def problem(answer: Answer) -> tuple[int, str]:
    assert answer["Content-Type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid"),
        (b"{", "malformed_body"),
        (b'{"name": "A"} x', "malformed_body"),
        (b'{"name": NaN}', "malformed_body"),
        (b'{"name": 1e400}', "malformed_body"),
        (b'{"name": ' + b"9" * 5000 + b"}", "malformed_body"),
        (b'{"name": "A", "name": "B"}', "malformed_body"),
        (b'{"name": "\xff"}', "malformed_body"),
        (b'{"name": "\\ud800"}', "malformed_body"),
        (b'{"\\ud800": 1}', "malformed_body"),
        (b'\xef\xbb\xbf{"name": "A"}', "malformed_body"),
        ('{"name": "A"}'.encode("utf-16"), "malformed_body"),
        (b'{"name": ' + b"[" * 2000 + b"]" * 2000 + b"}", "malformed_body"),
        (b'{"name": ' + b"[" * 500 + b"]" * 500 + b"}", "invalid"),
        (b"[]", "invalid"),
        (b'"A"', "invalid"),
        (b"null", "invalid"),
        (b"5", "invalid"),
        (b'{"name": "A", "description": "\\u0000"}', "invalid"),
        (b'{"name": "A", "nmae": "B"}', "invalid"),
        (b'{"name": "A", "\\u0000": "B"}', "invalid"),
        (b'{"name": "A", "version": 7}', "invalid"),
    ],
)
def test_a_broken_body_is_refused_and_nothing_stored(body: bytes, code: str) -> None:
    assert problem(client_of().post(EVENT_TYPES, body, content_type=JSON)) == (400, code)
    assert EventType.objects.configured().count() == 0


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "../up",
        "a/b",
        "-a",
        ".a",
        "a b",
        "a\n",
        "a\0",
        "%00",
        "\u00e4",
        "\U0001f600",
        "x" * 256,
        5,
        True,
        None,
        ["a"],
        {"a": "b"},
    ],
)
def test_a_name_that_could_not_stand_in_an_address_is_refused(name: object) -> None:
    answer = client_of().post(EVENT_TYPES, {"name": name}, content_type=JSON)
    assert problem(answer) == (400, "invalid")
    assert {error["pointer"] for error in answer.json()["errors"]} == {"#/name"}


@pytest.mark.parametrize(
    "changes",
    [
        {"description": 5},
        {"description": True},
        {"description": None},
        {"description": ["x"]},
        {"sample": {"id": 1}},
        {"content_type": ""},
        {"content_type": 5},
        {"content_type": "x" * 256},
    ],
)
def test_no_type_is_coerced(changes: dict[str, object]) -> None:
    answer = client_of().post(EVENT_TYPES, {"name": "A", **changes}, content_type=JSON)
    assert problem(answer) == (400, "invalid")
    assert {error["pointer"] for error in answer.json()["errors"]} == {f"#/{name}" for name in changes}


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/xml", "multipart/form-data; boundary=x", "nonsense"]
)
def test_another_content_type_is_refused(content_type: str) -> None:
    answer = client_of().post(EVENT_TYPES, b'{"name": "A"}', content_type=content_type)
    assert problem(answer) == (415, "unsupported_media_type")


def test_a_compressed_body_is_refused() -> None:
    body = gzip.compress(b'{"name": "A"}')
    answer = client_of().post(EVENT_TYPES, body, content_type=JSON, headers={"Content-Encoding": "gzip"})
    assert problem(answer) == (415, "encoded_body")


@pytest.mark.parametrize(("size", "status"), [(MAX_BODY_BYTES, 201), (MAX_BODY_BYTES + 1, 413), (6 * 1024 * 1024, 413)])
def test_a_body_has_at_most_a_mebibyte(size: int, status: int) -> None:
    empty = b'{"name": "A", "description": ""}'
    body = empty.replace(b'""', b'"' + b"x" * (size - len(empty)) + b'"')
    answer = client_of().post(EVENT_TYPES, body, content_type=JSON)
    assert (answer.status_code, answer.json().get("code")) == (status, None if status == 201 else "body_too_large")


def test_a_body_of_unknown_length_is_refused_instead_of_taken_for_empty() -> None:
    headers = {"Transfer-Encoding": "chunked"}
    answer = client_of().generic("POST", EVENT_TYPES, b"", JSON, headers=headers)
    assert problem(answer) == (411, "length_required")


@pytest.mark.parametrize("length", ["abc", "-5", "1e3"])
def test_a_length_that_is_none_counts_as_no_body(length: str) -> None:
    answer = client_of().generic("POST", EVENT_TYPES, b'{"name": "A"}', JSON, CONTENT_LENGTH=length)
    assert problem(answer)[0] == 400


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/nothing",
        "/api/v2/event-types",
        "/api/v1/event-types/",
        "/api/v1/event-types/Nobody",
        "/api/v1/event-types/..%2Fup",
        "/api/v1/event-types/%00",
        "/api/v1/event-types/%F0%9F%98%80",
        "/api/v1/event-types/a%0A",
        "/api/v1/event-types/" + "x" * 256,
        "/api/v1/subscriptions/-1",
        "/api/v1/subscriptions/0",
        "/api/v1/subscriptions/abc",
        "/api/v1/subscriptions/" + "9" * 30,
        "/api/v1/subscriptions/" + "9" * 5000,
    ],
)
def test_an_unknown_address_is_not_found(path: str) -> None:
    assert problem(client_of().get(path)) == (404, "not_found")


@pytest.mark.parametrize("method", ["PUT", "OPTIONS", "TRACE", "LINK"])
def test_another_method_is_refused(method: str) -> None:
    answer = client_of().generic(method, EVENT_TYPES, "{}", JSON)
    assert problem(answer) == (405, "method_not_allowed")
    assert answer["Allow"] == "GET, HEAD, POST"


@pytest.mark.parametrize("accept", ["text/html", "application/xml", "nonsense", "*/*", ""])
def test_the_answer_is_json_whatever_the_client_accepts(accept: str) -> None:
    answer = client_of().get(EVENT_TYPES, headers={"Accept": accept})
    assert (answer.status_code, answer["Content-Type"]) == (200, "application/json")


@pytest.mark.parametrize("host", ["elsewhere.example", "a b", "testserver.elsewhere.example", "testserver@elsewhere"])
@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", EVENT_TYPES), ("GET", "/api/v1/openapi.json"), ("POST", "/api/v1/events"), ("POST", "/api/v1/events/Any")],
)
def test_what_is_meant_for_another_host_is_refused_whatever_it_is(method: str, path: str, host: str) -> None:
    answer = client_of().generic(method, path, "{}", JSON, headers={"Host": host})
    assert problem(answer) == (400, "unknown_host")


def test_probes_know_a_process_by_its_address() -> None:
    assert Client().get("/livez", headers={"Host": "10.0.0.7:8000"}).status_code == 200
    assert Client().get("/api/docs/", headers={"Host": "10.0.0.7:8000"}).status_code == 400
