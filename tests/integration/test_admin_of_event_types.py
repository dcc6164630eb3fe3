"""Event types in the admin: schema and sample, files out and in."""

import json
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection
from django.test import Client

from subscriptions.models import EventType
from tests import factories
from tests.clients import Answer

pytestmark = pytest.mark.django_db

ROOT = "/admin/subscriptions/eventtype"
FORM = {"name": "Order.Paid", "kind": "TOPIC", "content_type": "application/json", "description": ""}
SCHEMA = {"type": "object", "required": ["id"]}


def shown(client: Client, content: str) -> Answer:
    """Return the page after a file was chosen."""
    return client.post(f"{ROOT}/import/", {"file": SimpleUploadedFile("types.yaml", content.encode())})


def confirmed(client: Client, page: Answer) -> Answer:
    """Return the page after the preview's button was pressed."""
    fields = dict(re.findall(r'name="(previewed|confirmed)" value="([^"]*)"', page.content.decode()))
    return client.post(f"{ROOT}/import/", fields, follow=True)


def told(answer: Answer) -> str:
    return " ".join(str(message) for message in answer.context["messages"])


@pytest.mark.behaviour("1.1")
def test_schema_and_sample_are_set_and_shown_to_be_read(admin: Client) -> None:
    sample = '{"id":\r\n "o-1"}\r\n'
    admin.post(f"{ROOT}/add/", {**FORM, "schema": json.dumps(SCHEMA), "sample": sample})
    made = EventType.objects.configured().get()
    assert (made.schema, made.sample) == (SCHEMA, '{"id":\n "o-1"}\n')
    page = admin.get(f"{ROOT}/{made.pk}/change/")
    assert "{\n  &quot;type&quot;: &quot;object&quot;,\n" in page.content.decode()


def test_saving_what_was_shown_changes_nothing(admin: Client) -> None:
    made = factories.event_type("Order.Paid", schema=SCHEMA, sample='{"id": 1}\n')
    shown_schema = json.dumps(SCHEMA, indent=2).replace("\n", "\r\n")
    admin.post(f"{ROOT}/{made.pk}/change/", {**FORM, "schema": shown_schema, "sample": '{"id": 1}\r\n'})
    assert EventType.objects.configured().get().version == 1


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
        ({"sample": "no JSON"}, "and the sample is not"),
        ({"sample": "[]", "schema": json.dumps(SCHEMA)}, "does not satisfy the schema"),
        ({"schema": "{}", "content_type": "text/plain"}, "Only JSON has a schema"),
    ],
)
@pytest.mark.behaviour("1.1")
def test_a_schema_or_sample_that_does_not_fit_is_said_at_its_field(
    admin: Client, fields: dict[str, Any], says: str
) -> None:
    answer = admin.post(f"{ROOT}/add/", {**FORM, "sample": "", "schema": "", **fields})
    errors = answer.context["adminform"].form.errors
    assert answer.status_code == 200
    assert says in " ".join(message for messages in errors.values() for message in messages)
    assert not EventType.objects.configured().exists()


def test_of_two_changes_in_the_same_instant_that_do_not_go_together_the_second_is_refused(admin: Client) -> None:
    made = factories.event_type("Order.Paid", schema={"type": "object"}, sample="{}")

    def another_admin_is_first(execute: Any, sql: str, *rest: Any) -> Any:
        if "FOR NO KEY UPDATE" in sql:
            EventType.objects.update(schema={"type": "array"}, sample="[]")
        return execute(sql, *rest)

    form = {**FORM, "schema": '{"type": "object"}', "sample": '{"id": 1}'}
    with connection.execute_wrapper(another_admin_is_first):
        answer = admin.post(f"{ROOT}/{made.pk}/change/", form, follow=True)
    assert answer.status_code == 200
    assert told(answer).startswith("Not saved, for others have just changed something: The sample does not satisfy")


def test_a_file_is_previewed_and_then_imported(admin: Client) -> None:
    factories.event_type("A", description="old")
    page = shown(admin, "event_types: [{name: A, description: ü}, {name: B}]")
    shown_words = ("Nothing has been changed yet", "would be created", "would be changed", "description")
    assert [word for word in shown_words if word not in page.content.decode()] == []
    assert EventType.objects.configured().get().description == "old"
    assert told(confirmed(admin, page)) == "Imported: 1 created, 1 changed, 0 unchanged."
    assert [*EventType.objects.configured().order_by("name").values_list("name", "description")] == [
        ("A", "ü"),
        ("B", ""),
    ]
    assert {entry.get_change_message() for entry in LogEntry.objects.all()} == {"Imported description.", "Imported."}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("event_types: [{name: A, kind: SYNC}]", "/event_types/0/kind"),
        ("event_types: [{name: A}, {name: <script>}]", "/event_types/1/name"),
        ("a: &a b", "one member, the list"),
        ("x" * 1_048_577, "at most 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_imported_is_explained(admin: Client, content: str, says: str) -> None:
    factories.event_type("A")
    page = shown(admin, content).content.decode()
    assert says in page
    assert "Import this" not in page
    assert "<script>}" not in page


def test_no_file_and_a_broken_preview_are_said(admin: Client) -> None:
    assert b"Show what would be done" in admin.get(f"{ROOT}/import/").content
    assert b"Choose a file." in admin.post(f"{ROOT}/import/", {"previewed": ""}).content
    assert b"Choose the file again." in admin.post(f"{ROOT}/import/", {"previewed": "%", "confirmed": "yes"}).content


def test_all_or_some_are_exported(admin: Client) -> None:
    made = [factories.event_type(name) for name in "AB"]
    every = admin.get(f"{ROOT}/export/")
    some = admin.post(f"{ROOT}/", {"action": "export_chosen", "_selected_action": [made[1].pk]})
    assert every["Content-Disposition"] == 'attachment; filename="event-types.yaml"'
    assert [re.findall(r"name: (\w)", file.content.decode()) for file in (every, some)] == [["A", "B"], ["B"]]


def test_whoever_may_only_view_imports_nothing(client: Client) -> None:
    viewer = User.objects.create(username="viewer", is_staff=True)
    viewer.user_permissions.set(Permission.objects.filter(codename__in=["view_eventtype", "add_eventtype"]))
    client.force_login(viewer)
    assert shown(client, "event_types: [{name: A}]").status_code == 403
    assert client.get(f"{ROOT}/export/").status_code == 200
