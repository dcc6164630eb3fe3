"""Event types over the API and in the admin: schemas, examples, the broker's own types."""

import json
import re
from typing import Any

import psycopg
import pytest
from django.contrib.admin.models import LogEntry
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from delivery.models import Message
from subscriptions import edit
from subscriptions.import_export import RefusedEntries, import_event_types
from subscriptions.models import EventKind, EventType, Subscription
from subscriptions.presets import OWN_EVENT_TYPES
from tests.support import factories
from tests.support.admin import form_shown, messages_of, save_form
from tests.support.api import Answer, client_of, invalid_fields, problem_of, publish

pytestmark = pytest.mark.django_db

EVENT_TYPES = "/api/v1/event-types"

NAME = "Order.Paid"
SCHEMA = {"type": "object", "required": ["id"], "properties": {"id": {"minLength": 1}, "n": {"maximum": 10}}}

SUBSCRIPTIONS = "/api/v1/subscriptions"
REJECTED = "Broker.Delivery.Rejected"

ADMIN_EVENT_TYPES = "/admin/subscriptions/eventtype"
FORM = {"name": "Order.Paid", "kind": "TOPIC", "content_type": "application/json", "description": ""}
ID_SCHEMA = {"type": "object", "required": ["id"]}

NEW = {
    "name": "TeamForge.Artifact.Create",
    "kind": "TOPIC",
    "content_type": "application/json",
    "description": "An artifact was created.",
    "sample": '{"id": "artf1"}',
    "schema": {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
}


@pytest.mark.parametrize("kind", EventKind.values)
@pytest.mark.behaviour("1.1")
def test_an_event_type_is_created_and_read_as_it_was_given(management: Client, kind: str) -> None:
    made = management.post(EVENT_TYPES, NEW | {"kind": kind})
    assert (made.status_code, made["Location"], made["ETag"]) == (201, f"{EVENT_TYPES}/{NEW['name']}", '"1"')
    read = management.get(made["Location"])
    assert (read.status_code, read["ETag"], read.json()) == (200, '"1"', made.json())
    times = {name: read.json()[name] for name in ("created_at", "updated_at")}
    assert read.json() == {**NEW, "kind": kind, "version": 1, **times}


@pytest.mark.behaviour("1.1")
def test_a_name_is_given_once() -> None:
    factories.event_type("Order.Paid")
    answer = client_of().post(EVENT_TYPES, {"name": "Order.Paid"})
    assert problem_of(answer) == (409, "name_taken")
    assert EventType.objects.configured().count() == 1


@pytest.mark.parametrize("fixed", [{"name": "Other"}, {"kind": "QUEUE"}])
@pytest.mark.behaviour("1.1")
def test_name_and_kind_are_fixed_in_the_api_and_in_the_database(fixed: dict[str, str]) -> None:
    made = factories.event_type("Order.Paid")
    answer = client_of().patch(f"{EVENT_TYPES}/Order.Paid", fixed)
    assert (answer.status_code, answer.json()["errors"]) == (
        400,
        [{"pointer": f"#/{next(iter(fixed))}", "code": "unknown_field", "detail": "This cannot be set here."}],
    )
    with pytest.raises(IntegrityError), transaction.atomic():
        EventType.objects.filter(pk=made.pk).update(**fixed)


@pytest.mark.behaviour("1.1")
def test_description_schema_and_sample_may_change_and_only_changes_raise_the_version() -> None:
    factories.event_type("Order.Paid", description="old")
    changes = {"description": "new", "sample": "{}", "schema": {"type": "object"}}
    for _ in range(2):
        answer = client_of().patch(f"{EVENT_TYPES}/Order.Paid", changes)
        assert (answer.status_code, answer["ETag"]) == (200, '"2"')
        assert {**answer.json(), **changes} == answer.json()


def test_an_event_type_is_deleted_once_it_has_no_subscriptions() -> None:
    client, wanted = client_of(), factories.event_type("Order.Paid")
    made = factories.subscription(subscriber=factories.subscriber("shop"), event_type=wanted)
    answer = client.delete(f"{EVENT_TYPES}/Order.Paid")
    assert problem_of(answer) == (409, "still_in_use")
    assert answer.json()["detail"] == "shop ← Order.Paid still need it; delete those first."
    made.delete()
    assert client.delete(f"{EVENT_TYPES}/Order.Paid").status_code == 204
    assert client.get(f"{EVENT_TYPES}/Order.Paid").status_code == 404


@pytest.mark.behaviour("1.2")
def test_nobody_is_limited_to_an_event_type_while_it_is_deleted(
    transactional_db: None, elsewhere: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, delete = factories.event_type("Order.Paid"), EventType.delete

    def refer_and_delete(record: EventType) -> Any:
        with pytest.raises(psycopg.errors.LockNotAvailable):  # what the foreign key of a publisher's list asks for
            elsewhere.execute("SELECT FROM subscriptions_eventtype WHERE id = %s FOR KEY SHARE NOWAIT", [known.pk])
        return delete(record)

    monkeypatch.setattr(EventType, "delete", refer_and_delete)
    assert client_of().delete(f"{EVENT_TYPES}/Order.Paid").status_code == 204


@pytest.mark.behaviour("1.2")
def test_every_kind_of_key_reads_event_types() -> None:
    factories.event_type("Order.Paid")
    clients = [client_of(), client_of(factories.publisher()), client_of(factories.subscriber())]
    assert [client.get(f"{EVENT_TYPES}/Order.Paid").status_code for client in clients] == [200, 200, 200]
    assert [client.delete(f"{EVENT_TYPES}/Order.Paid").status_code for client in clients[1:]] == [403, 403]


@pytest.mark.parametrize(
    ("fields", "refused", "says"),
    [
        ({"schema": {"type": "strnig"}}, "schema", "At /type: "),
        ({"schema": {}, "content_type": "text/plain"}, "schema", "Only JSON has a schema"),
        ({"sample": "no JSON"}, "sample", "the sample is not"),
        ({"sample": "{}", "schema": {"type": "array"}}, "sample", "does not satisfy the schema"),
    ],
)
@pytest.mark.behaviour("1.1")
def test_a_schema_or_sample_that_does_not_fit_is_refused(fields: dict[str, object], refused: str, says: str) -> None:
    answer = client_of().post(EVENT_TYPES, {"name": "A", **fields})
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
def test_a_change_that_separates_sample_and_schema_is_refused(change: dict[str, object], refused: str) -> None:
    factories.event_type("Order.Paid", sample="{}", schema={"type": "object"})
    assert refused in invalid_fields(client_of().patch(f"{EVENT_TYPES}/Order.Paid", change))
    both = {"schema": {"type": "array"}, "sample": "[]"}
    assert client_of().patch(f"{EVENT_TYPES}/Order.Paid", both).status_code == 200


def test_a_sample_of_another_content_type_may_be_any_text() -> None:
    fields = {"name": "A", "content_type": "text/plain", "sample": "no JSON"}
    assert client_of().post(EVENT_TYPES, fields).status_code == 201


@pytest.fixture
def order_paid() -> EventType:
    return factories.event_type(NAME, schema=SCHEMA)


@pytest.fixture
def shop() -> Client:
    return client_of(factories.publisher("shop"))


def published(client: Client, body: str | bytes) -> Answer:
    return client.post(f"/api/v1/events/{NAME}", body)


@pytest.mark.behaviour("2.5")
def test_a_payload_that_satisfies_the_schema_is_stored_unchanged(order_paid: EventType, shop: Client) -> None:
    body = b' {"n": 1.0e1, "id": "twice", "id" : "o-1"} '
    assert published(shop, body).status_code == 202
    assert bytes(Message.objects.get().body) == body


@pytest.mark.behaviour("2.5")
def test_a_payload_that_violates_the_schema_is_refused_with_all_errors(order_paid: EventType, shop: Client) -> None:
    answer = published(shop, '{"n": 11}')
    assert (answer.status_code, answer.json()) == (
        422,
        {
            "type": "/api/docs/problems#schema_violated",
            "code": "schema_violated",
            "title": "Schema violated",
            "status": 422,
            "detail": "The body does not satisfy the schema of Order.Paid; see errors.",
            "errors": [
                {"pointer": "#/n", "code": "schema", "detail": "this value is greater than the maximum of 10"},
                {"pointer": "#", "code": "schema", "detail": "'id' is missing"},
            ],
        },
    )
    assert not Message.objects.exists()


@pytest.mark.parametrize(
    "body", ['{"id": "\\ud800"}', '{"id": "o", "n": 1e99999999999999999999}', "[" * 900 + "]" * 900]
)
@pytest.mark.behaviour("2.5")
def test_a_payload_that_cannot_be_validated_is_refused(order_paid: EventType, shop: Client, body: str) -> None:
    assert (published(shop, body).status_code, Message.objects.count()) == (422, 0)


@pytest.mark.behaviour("2.5", "2.7")
def test_one_invalid_item_refuses_its_batch_and_is_named(order_paid: EventType, shop: Client) -> None:
    many = {f"m{n}": 1 for n in range(20)}
    edit.change(EventType.objects.configured(), changes={"schema": {"additionalProperties": {"type": "string"}}})
    events = [{"event": NAME, "body": {"id": "fine"}}, {"event": NAME, "body": many}]
    answer = shop.post("/api/v1/events", {"events": events})
    fine, broken = answer.json()["results"]
    assert (answer.status_code, answer.json()["code"], fine) == (422, "invalid_items", {"status": "valid"})
    assert (broken["status"], broken["code"], len(broken["errors"])) == ("invalid", "schema_violated", 10)
    assert broken["errors"][0] == {"pointer": "#/m0", "code": "schema", "detail": 'this value is not of type "string"'}
    assert not Message.objects.exists()


@pytest.mark.behaviour("1.1", "3.7")
def test_a_changed_schema_counts_from_then_on(management: Client, order_paid: EventType, shop: Client) -> None:
    address = f"/api/v1/event-types/{NAME}"
    statuses = []
    for schema in (SCHEMA, {"type": "array"}, None, SCHEMA):
        assert management.patch(address, {"schema": schema}).status_code == 200
        statuses.append([published(shop, body).status_code for body in ('{"id": "o-1"}', "[]", "5")])
    assert statuses == [[202, 422, 422], [422, 202, 422], [202, 202, 202], [202, 422, 422]]


def test_a_schema_that_is_already_known_costs_no_statement(order_paid: EventType, shop: Client) -> None:
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as captured:
            assert published(shop, '{"id": "o-1"}').status_code == 202
        counts.append(len(captured))
    EventType.objects.update(schema=None)
    with CaptureQueriesContext(connection) as captured:
        assert published(shop, '{"id": "o-1"}').status_code == 202
    assert counts[1] == len(captured)


def test_an_unusable_stored_schema_is_reported(order_paid: EventType, shop: Client) -> None:
    EventType.objects.update(schema={"type": "strnig"})
    answer = published(shop, "{}")
    assert problem_of(answer) == (422, "schema_violated")
    assert answer.json()["errors"][0]["detail"].startswith("The schema itself cannot be used. At /type: ")


def wanted(**fields: object) -> dict[str, object]:
    return {"subscriber": "ops", "endpoint": "https://ops.example/hook", **fields}


@pytest.mark.behaviour("5.7")
def test_the_brokers_own_event_types_exist_and_cannot_be_changed(management: Client) -> None:
    own = {f"Broker.{name}" for name in OWN_EVENT_TYPES}
    assert {*EventType.objects.exclude(pk__in=EventType.objects.configured()).values_list("name", flat=True)} == own
    for name in own:
        read = management.get(f"{EVENT_TYPES}/{name}")
        assert (read.status_code, read.json()["kind"]) == (200, "TOPIC")
        changed = management.patch(f"{EVENT_TYPES}/{name}", {"description": "mine"})
        assert problem_of(changed) == (409, "preset")
        assert changed.json()["detail"] == f"{name} came installed and stays as it is."
        assert management.delete(f"{EVENT_TYPES}/{name}").status_code == 409
        assert EventType.objects.get(name=name).version == 1


@pytest.mark.behaviour("5.7")
def test_no_other_event_type_begins_with_broker() -> None:
    answer = client_of().post(EVENT_TYPES, {"name": "Broker.Mine"})
    assert invalid_fields(answer) == ["name"]
    with pytest.raises(RefusedEntries):
        import_event_types(b'{"event_types": [{"name": "Broker.Mine"}]}', dry_run=False)
    assert client_of().post(EVENT_TYPES, {"name": "Brokers.Mine"}).status_code == 201


@pytest.mark.behaviour("5.7")
def test_in_the_admin_the_brokers_own_event_types_are_read_only(admin: Client) -> None:
    page = f"{ADMIN_EVENT_TYPES}/{EventType.objects.get(name=REJECTED).pk}"
    assert b'name="description"' not in admin.get(f"{page}/change/").content
    assert admin.post(f"{page}/change/", {"description": "mine"}).status_code == 403
    assert admin.post(f"{page}/delete/", {"post": "yes"}).status_code == 403


@pytest.mark.parametrize(
    "events",
    [
        *({"event_type": REJECTED}, {"event_pattern": "Broker.*"}, {"event_pattern": "Broker.Delivery.*"}),
        *({"event_type": "Test.QUEUE"}, {"event_type": "Test.SYNC"}),
    ],
)
@pytest.mark.behaviour("1.2", "5.7")
def test_subscribing_to_events_of_others_takes_management(events: dict[str, str]) -> None:
    for kind in (EventKind.QUEUE, EventKind.SYNC):
        factories.event_type(f"Test.{kind}", kind)
    own = client_of(factories.subscriber("ops"))
    refused = own.post(SUBSCRIPTIONS, wanted(**events))
    assert (refused.status_code, refused.json()["code"], Subscription.objects.count()) == (403, "forbidden", 0)
    assert client_of().post(SUBSCRIPTIONS, wanted(**events)).status_code == 201


@pytest.mark.behaviour("1.2")
def test_for_everything_else_a_subscribers_key_is_enough() -> None:
    own = client_of(factories.subscriber("ops"))
    factories.event_type("Brokers.Order")
    for events in ({"event_type": "Brokers.Order"}, {"event_pattern": "*"}, {"event_pattern": "Brokers.*"}):
        assert own.post(SUBSCRIPTIONS, wanted(**events)).status_code == 201


@pytest.mark.behaviour("5.7")
def test_only_the_broker_publishes_its_own_events() -> None:
    limited = factories.publisher(event_types=[EventType.objects.get(name=REJECTED)])
    for owner in (None, factories.publisher(), limited):
        assert problem_of(publish(client_of(owner), event=REJECTED)) == (403, "event_type_not_allowed")
    assert Message.objects.count() == 0


def shown(client: Client, content: str) -> Answer:
    """Return the page after a file was chosen."""
    return client.post(f"{ADMIN_EVENT_TYPES}/import/", {"file": SimpleUploadedFile("types.json", content.encode())})


def confirmed(client: Client, page: Answer) -> Answer:
    """Return the page after the preview's button was pressed."""
    fields = dict(re.findall(r'name="(previewed|confirmed)" value="([^"]*)"', page.text))
    return client.post(f"{ADMIN_EVENT_TYPES}/import/", fields, follow=True)


@pytest.mark.behaviour("1.1")
def test_schema_and_sample_are_set_and_shown_to_be_read(admin: Client) -> None:
    sample = '{"id":\r\n "o-1"}\r\n'
    admin.post(f"{ADMIN_EVENT_TYPES}/add/", {**FORM, "schema": json.dumps(ID_SCHEMA), "sample": sample})
    made = EventType.objects.configured().get()
    assert (made.schema, made.sample) == (ID_SCHEMA, '{"id":\n "o-1"}\n')
    page = admin.get(f"{ADMIN_EVENT_TYPES}/{made.pk}/change/")
    assert "{\n  &quot;type&quot;: &quot;object&quot;,\n" in page.text


def test_saving_what_was_shown_changes_nothing(admin: Client) -> None:
    made = factories.event_type("Order.Paid", schema=ID_SCHEMA, sample='{"id": 1}\n')
    form = {name: value.replace("\n", "\r\n") for name, value in form_shown(admin, made).items()}
    assert save_form(admin, made, form).status_code == 302
    assert EventType.objects.configured().get().version == 1
    assert LogEntry.objects.get().get_change_message() == "No fields changed."


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"schema": '{"type": "strnig"}'}, "At /type: "),
        (
            {"schema": '{"type":\n "object",\n]'},
            "This is not JSON: Expecting property name enclosed in double quotes: line",
        ),
        ({"schema": "[" * 5000}, "nested too deep"),
        ({"schema": "1" * 5000}, "too many digits"),
        ({"sample": "[]", "schema": json.dumps(ID_SCHEMA)}, "does not satisfy the schema"),
    ],
)
@pytest.mark.behaviour("1.1")
def test_an_invalid_schema_or_sample_is_reported_at_its_field(admin: Client, fields: dict[str, Any], says: str) -> None:
    answer = admin.post(f"{ADMIN_EVENT_TYPES}/add/", {**FORM, "sample": "", "schema": "", **fields})
    errors = answer.context["adminform"].form.errors
    assert answer.status_code == 200
    assert says in " ".join(message for messages in errors.values() for message in messages)
    assert not EventType.objects.configured().exists()


def test_of_two_changes_in_the_same_instant_the_second_is_refused(admin: Client) -> None:
    made = factories.event_type("Order.Paid", schema={"type": "object"}, sample="{}")

    def another_admin_is_first(execute: Any, sql: str, *rest: Any) -> Any:
        if "FOR NO KEY UPDATE" in sql:
            EventType.objects.update(schema={"type": "array"}, sample="[]")
        return execute(sql, *rest)

    form = form_shown(admin, made) | {"sample": '{"id": 1}'}
    with connection.execute_wrapper(another_admin_is_first):
        refused = save_form(admin, made, form)
    assert messages_of(admin.get(refused.headers["Location"])).startswith(
        "Not saved, because of a change made meanwhile"
    )
    assert EventType.objects.get(pk=made.pk).version == 1, "the transaction of both was rolled back"


def test_what_is_deleted_in_the_same_instant_is_neither_saved_nor_deleted(admin: Client) -> None:
    made = factories.event_type("Order.Paid")

    def another_admin_is_first(execute: Any, sql: str, *rest: Any) -> Any:
        if " UPDATE OF " in sql:
            execute("DELETE FROM subscriptions_eventtype WHERE id = %s", [made.pk], *rest[1:])
        return execute(sql, *rest)

    form = form_shown(admin, made) | {"description": "new"}
    with connection.execute_wrapper(another_admin_is_first):
        refused = [
            save_form(admin, made, form),
            admin.post(f"{ADMIN_EVENT_TYPES}/{made.pk}/delete/", {"post": "yes"}),
        ]
    said = messages_of(admin.get(refused[1].headers["Location"]))
    assert ("It was deleted." in said, "has deleted it" in said) == (True, True)


def test_a_file_is_previewed_and_then_imported(admin: Client) -> None:
    factories.event_type("A", description="old")
    page = shown(admin, '{"event_types": [{"name": "A", "description": "ü"}, {"name": "B"}]}')
    shown_words = ("Nothing has been changed yet", "would be created", "would be changed", "description")
    assert [word for word in shown_words if word not in page.text] == []
    assert EventType.objects.configured().get().description == "old"
    assert messages_of(confirmed(admin, page)) == "Imported: 1 created, 1 changed, 0 unchanged."
    imported = EventType.objects.configured().order_by("name").values_list("name", "description")
    assert [*imported] == [("A", "ü"), ("B", "")]
    assert {entry.get_change_message() for entry in LogEntry.objects.all()} == {"Imported description.", "Imported."}


def test_imports_create_in_one_order_whatever_that_of_the_file_is() -> None:
    content = json.dumps({"event_types": [{"name": name} for name in "CAB"]}).encode()
    imported = [one.event_type for one in import_event_types(content, dry_run=False)]
    assert [one.name for one in imported] == [*"CAB"]
    assert [one.name for one in sorted(imported, key=lambda one: one.pk)] == [*"ABC"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"event_types": [{"name": "A", "kind": "SYNC"}]}', "/event_types/0/kind"),
        ('{"event_types": [{"name": "A"}, {"name": "<script>"}]}', "/event_types/1/name"),
        ("{}", "one member, the list"),
        ("x" * 1_048_577, "at most 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_imported_is_explained(admin: Client, content: str, says: str) -> None:
    factories.event_type("A")
    page = shown(admin, content).text
    assert says in page
    assert 'name="previewed"' not in page
    assert '"<script>' not in page


def test_a_missing_file_and_a_broken_preview_are_reported(admin: Client) -> None:
    assert b"Show a preview" in admin.get(f"{ADMIN_EVENT_TYPES}/import/").content
    assert b"Choose a file." in admin.post(f"{ADMIN_EVENT_TYPES}/import/", {"previewed": ""}).content
    broken = admin.post(f"{ADMIN_EVENT_TYPES}/import/", {"previewed": "%", "confirmed": "yes"})
    assert b"Choose the file again." in broken.content


def test_all_or_some_are_exported(admin: Client) -> None:
    made = [factories.event_type(name) for name in "AB"]
    every = admin.get(f"{ADMIN_EVENT_TYPES}/export/")
    some = admin.post(f"{ADMIN_EVENT_TYPES}/", {"action": "export_chosen", "_selected_action": [made[1].pk]})
    assert every["Content-Disposition"] == 'attachment; filename="event-types.json"'
    assert [re.findall(r'"name": "(\w)"', file.text) for file in (every, some)] == [["A", "B"], ["B"]]


def test_what_is_exported_can_be_imported_whatever_was_chosen(admin: Client) -> None:
    factories.event_type("A")
    chosen = [*EventType.objects.values_list("pk", flat=True)]
    assert EventType.objects.get(name="Broker.Line.Paused").pk in chosen
    file = admin.post(f"{ADMIN_EVENT_TYPES}/", {"action": "export_chosen", "_selected_action": chosen})
    assert messages_of(confirmed(admin, shown(admin, file.text))) == ("Imported: 0 created, 0 changed, 1 unchanged.")
