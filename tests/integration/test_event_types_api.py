"""Event types over the API."""

import pytest
from django.db import IntegrityError, transaction

from subscriptions.models import EventKind, EventType
from tests import factories
from tests.clients import client_of

pytestmark = pytest.mark.django_db

ROOT = "/api/v1/event-types"
NEW = {
    "name": "TeamForge.Artifact.Create",
    "kind": "TOPIC",
    "content_type": "application/json",
    "description": "An artifact was created.",
    "sample": '{"id": "artf1"}',
    "schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
}


@pytest.mark.behaviour("1.1")
def test_an_event_type_is_created_and_read_as_it_was_given() -> None:
    client = client_of()
    made = client.post(ROOT, NEW, content_type="application/json")
    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{ROOT}/TeamForge.Artifact.Create", '"1"')
    read = client.get(made["Location"])
    assert (read.status_code, read["ETag"], read.json()) == (200, '"1"', made.json())
    kept = {"version": 1, "created_at": read.json()["created_at"], "updated_at": read.json()["updated_at"]}
    assert read.json() == {**NEW, **kept}


@pytest.mark.parametrize("kind", EventKind.values)
@pytest.mark.behaviour("1.1")
def test_an_event_type_has_one_of_three_kinds(kind: str) -> None:
    made = client_of().post(ROOT, {"name": "A", "kind": kind}, content_type="application/json")
    assert (made.status_code, made.json()["kind"]) == (201, kind)


@pytest.mark.behaviour("1.1")
def test_a_name_is_given_once() -> None:
    factories.event_type("Order.Paid")
    answer = client_of().post(ROOT, {"name": "Order.Paid"}, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")
    assert EventType.objects.configured().count() == 1


@pytest.mark.parametrize("fixed", [{"name": "Other"}, {"kind": "QUEUE"}])
@pytest.mark.behaviour("1.1")
def test_name_and_kind_are_fixed(fixed: dict[str, str]) -> None:
    factories.event_type("Order.Paid")
    answer = client_of().patch(f"{ROOT}/Order.Paid", fixed, content_type="application/json")
    assert (answer.status_code, answer.json()["errors"]) == (
        400,
        [{"pointer": f"#/{next(iter(fixed))}", "code": "unknown_field", "detail": "This cannot be set here."}],
    )


@pytest.mark.parametrize("fixed", [{"name": "Other"}, {"kind": "QUEUE"}])
@pytest.mark.behaviour("1.1")
def test_the_database_refuses_another_name_or_kind(fixed: dict[str, str]) -> None:
    made = factories.event_type("Order.Paid")
    with pytest.raises(IntegrityError), transaction.atomic():
        EventType.objects.filter(pk=made.pk).update(**fixed)


@pytest.mark.behaviour("1.1")
def test_description_schema_and_sample_may_change() -> None:
    factories.event_type("Order.Paid", description="old")
    changes = {"description": "new", "sample": "{}", "schema": {"type": "object"}}
    answer = client_of().patch(f"{ROOT}/Order.Paid", changes, content_type="application/json")
    assert (answer.status_code, answer["ETag"]) == (200, '"2"')
    assert {**answer.json(), **changes} == answer.json()


def test_a_change_that_changes_nothing_raises_no_version() -> None:
    factories.event_type("Order.Paid", description="same")
    answer = client_of().patch(f"{ROOT}/Order.Paid", {"description": "same"}, content_type="application/json")
    assert (answer.status_code, answer["ETag"]) == (200, '"1"')


def test_an_unused_event_type_is_deleted() -> None:
    factories.event_type("Order.Paid")
    client = client_of()
    assert client.delete(f"{ROOT}/Order.Paid").status_code == 204
    assert client.get(f"{ROOT}/Order.Paid").status_code == 404


def test_an_event_type_with_subscriptions_is_not_deleted() -> None:
    wanted = factories.event_type("Order.Paid")
    factories.subscription(subscriber=factories.subscriber("shop"), event_type=wanted)
    answer = client_of().delete(f"{ROOT}/Order.Paid")
    assert (answer.status_code, answer.json()["code"]) == (409, "still_in_use")
    assert answer.json()["detail"] == "shop ← Order.Paid still need it; delete those first."


@pytest.mark.behaviour("1.2")
def test_deleting_an_event_type_never_lets_a_publisher_publish_more() -> None:
    limited = factories.publisher("till", event_types=[factories.event_type("Order.Paid")])
    answer = client_of().delete(f"{ROOT}/Order.Paid")
    assert (answer.status_code, answer.json()["code"]) == (409, "still_in_use")
    assert [known.name for known in limited.event_types.all()] == ["Order.Paid"]


@pytest.mark.behaviour("1.2")
def test_every_kind_of_key_reads_event_types() -> None:
    factories.event_type("Order.Paid")
    clients = [client_of(), client_of(factories.publisher()), client_of(factories.subscriber())]
    assert [client.get(f"{ROOT}/Order.Paid").status_code for client in clients] == [200, 200, 200]
    assert [client.delete(f"{ROOT}/Order.Paid").status_code for client in clients[1:]] == [403, 403]


@pytest.mark.parametrize(
    ("fields", "refused", "says"),
    [
        ({"schema": {"type": "strnig"}}, "schema", "At /type: "),
        ({"schema": {"$ref": "http://127.0.0.1:9/"}}, "schema", "nothing is fetched"),
        ({"schema": True}, "schema", "A schema is a JSON object"),
        ({"schema": {"const": "\0"}}, "schema", "no NUL characters"),
        ({"schema": {}, "content_type": "text/plain"}, "schema", "Only JSON has a schema"),
        ({"sample": "no JSON"}, "sample", "the sample is not"),
        ({"sample": "{}", "schema": {"type": "array"}}, "sample", "does not satisfy the schema"),
    ],
)
@pytest.mark.behaviour("1.1")
def test_a_schema_or_sample_that_does_not_fit_is_refused(fields: dict[str, object], refused: str, says: str) -> None:
    answer = client_of().post(ROOT, {"name": "A", **fields}, content_type="application/json")
    first = answer.json()["errors"][0]
    assert (answer.status_code, first["pointer"]) == (400, f"#/{refused}")
    assert says in first["detail"]
    assert not EventType.objects.configured().exists()


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"schema": {"type": "array"}}, "sample"),
        ({"sample": "[]"}, "sample"),
        ({"content_type": "text/plain"}, "schema"),
    ],
)
@pytest.mark.behaviour("1.1")
def test_whichever_changes_sample_and_schema_still_go_together(change: dict[str, object], refused: str) -> None:
    factories.event_type("Order.Paid", sample="{}", schema={"type": "object"})
    answer = client_of().patch(f"{ROOT}/Order.Paid", change, content_type="application/json")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, f"#/{refused}")
    both = {"schema": {"type": "array"}, "sample": "[]"}
    assert client_of().patch(f"{ROOT}/Order.Paid", both, content_type="application/json").status_code == 200


def test_a_sample_of_another_content_type_may_be_any_text() -> None:
    fields = {"name": "A", "content_type": "text/plain", "sample": "no JSON"}
    assert client_of().post(ROOT, fields, content_type="application/json").status_code == 201
