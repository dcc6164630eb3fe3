"""Event types out to a file and in again: on the command line, over the API."""

import io
import json
from pathlib import Path

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.core.management import CommandError, call_command

from subscriptions.models import EventType
from tests.support import factories
from tests.support.api import Answer, client_of, client_with, problem_of

pytestmark = pytest.mark.django_db

ADDRESS = "/api/v1/event-type-file"
PAID = {"name": "Order.Paid", "sample": '{"id": "o-1"}', "schema": {"type": "object", "required": ["id"]}}


def imported(*entries: object, query: str = "") -> Answer:
    return client_of().post(ADDRESS + query, {"event_types": entries})


def verdicts(answer: Answer) -> list[tuple[str, str, list[str]]]:
    assert answer.status_code == 200
    return [(one["name"], one["verdict"], one["changed"]) for one in answer.json()["results"]]


def problems(answer: Answer) -> dict[str, str]:
    assert problem_of(answer) == (422, "entries_refused")
    return {error["pointer"]: error["detail"] for error in answer.json()["errors"]}


def run(command: str, *arguments: str) -> str:
    output = io.StringIO()
    call_command(command, *arguments, stdout=output)
    return output.getvalue()


@pytest.mark.behaviour("1.1")
def test_a_file_creates_changes_and_keeps_event_types() -> None:
    factories.event_type("A", description="same")
    factories.event_type("B", description="old", sample="{}")
    entries = [{"name": "A", "description": "same"}, {"name": "B", "description": "new"}, PAID]
    changed = ("B", "CHANGED", ["description"])
    assert verdicts(imported(*entries)) == [("A", "UNCHANGED", []), changed, ("Order.Paid", "CREATED", [])]
    assert [
        *EventType.objects.configured().order_by("name").values_list("name", "description", "sample", "version")
    ] == [("A", "same", "", 1), ("B", "new", "{}", 2), ("Order.Paid", "", '{"id": "o-1"}', 1)]


def test_a_file_that_is_imported_again_changes_nothing() -> None:
    numbers = {"multipleOf": 1e23, "maximum": 1e-7, "minimum": -0.0, "enum": [1, 1.0, True, 1e400 and 10**30]}
    entries = [{**PAID, "schema": {"properties": {"n": numbers}}}]
    assert verdicts(imported(*entries)) == [("Order.Paid", "CREATED", [])]
    assert verdicts(imported(*entries)) == [("Order.Paid", "UNCHANGED", [])]


def test_a_true_that_was_a_one_is_a_change() -> None:
    for constant, verdict in ((1, "CREATED"), (True, "CHANGED"), (1.0, "CHANGED"), (1, "UNCHANGED")):
        assert [one[1] for one in verdicts(imported({"name": "A", "schema": {"const": constant}}))] == [verdict]


def test_a_dry_run_says_what_would_be_done_and_does_nothing() -> None:
    assert verdicts(imported(PAID, query="?dry_run=true")) == [("Order.Paid", "CREATED", [])]
    assert not EventType.objects.configured().exists()
    assert imported(PAID, query="?dry_run=perhaps").status_code == 400


@pytest.mark.behaviour("1.11")
def test_an_import_is_in_the_history_of_each_event_type_that_it_changes() -> None:
    known = [factories.event_type(name) for name in "AB"]
    key, token = factories.api_key(label="deploy")
    entries = [{"name": "A"}, {"name": "B", "description": "new", "sample": "{}"}, PAID]
    assert client_with(token).post(ADDRESS, {"event_types": entries}).status_code == 200
    made, call = EventType.objects.get(name="Order.Paid"), f"{key.prefix} (deploy): POST {ADDRESS}"
    columns = ("content_type__model", "object_id", "object_repr", "action_flag", "change_message")
    assert {*LogEntry.objects.values_list(*columns)} == {
        ("eventtype", str(known[1].pk), "B", CHANGE, f"{call}: description, sample"),
        ("eventtype", str(made.pk), "Order.Paid", ADDITION, call),
    }


@pytest.mark.behaviour("1.1")
def test_one_broken_entry_refuses_the_file_and_every_problem_is_reported() -> None:
    factories.event_type("A")
    refused = problems(
        imported(
            PAID,
            {"name": "A", "kind": "QUEUE"},
            {"name": "B", "schema": {"type": "strnig"}},
            {"name": "C", "sample": "[]", "schema": {"type": "object"}},
            {"name": "no name", "kind": "FAX", "content_type": "paper"},
            {"name": "D", "colour": "red", "kind": "FAX", "schema": []},
            {"name": "D", "sample": 5},
            {"name": "D", "sample": "{"},
        )
    )
    assert list(refused) == [
        "#/event_types/1/kind",
        "#/event_types/2/schema",
        "#/event_types/3/sample",
        "#/event_types/4/name",
        "#/event_types/4/kind",
        "#/event_types/4/content_type",
        "#/event_types/5",
        "#/event_types/5/kind",
        "#/event_types/5/schema",
        "#/event_types/6/sample",
        "#/event_types/6/name",
        "#/event_types/7/name",
        "#/event_types/7/sample",
    ]
    assert refused["#/event_types/1/kind"] == "A exists, and the kind of an event type is fixed."
    assert [one.name for one in EventType.objects.configured()] == ["A"]


def test_an_invalid_file_is_refused() -> None:
    for content in (b"a: []", b'{"event_types": [{"\\ud800": 1, "\\ud800": 2}]}'):
        assert problem_of(client_of().post(ADDRESS, content)) == (400, "unreadable_file")
    assert client_of().post(ADDRESS, b"{" * 1_100_000).status_code == 413


@pytest.mark.behaviour("1.2")
def test_only_management_imports_and_exports_event_types() -> None:
    for client in (client_of(factories.publisher()), client_of(factories.subscriber())):
        assert (client.get(ADDRESS).status_code, client.post(ADDRESS).status_code) == (403, 403)


@pytest.mark.behaviour("1.1")
def test_an_exported_file_makes_the_same_event_types_elsewhere() -> None:
    made = [PAID, {"name": "Note", "content_type": "text/plain", "sample": " a\n\n b\r\n", "description": "nötig: yes"}]
    imported(*made)
    before = [
        *EventType.objects.configured().order_by("name").values("name", "kind", "content_type", "sample", "schema")
    ]
    file = client_of().get(ADDRESS)
    assert (file.status_code, file["Content-Type"]) == (200, "application/json")
    assert file["Content-Disposition"] == 'attachment; filename="event-types.json"'
    EventType.objects.configured().delete()
    assert [one[1] for one in verdicts(client_of().post(ADDRESS, file.content))] == ["CREATED", "CREATED"]
    assert [
        *EventType.objects.configured().order_by("name").values("name", "kind", "content_type", "sample", "schema")
    ] == before


def test_the_command_line_exports_and_imports(tmp_path: Path) -> None:
    factories.event_type("A", schema={"type": "object"}, sample="{}")
    file = str(tmp_path / "types.json")
    assert run("export_event_types", file) == ""
    EventType.objects.configured().delete()
    dry = run("import_event_types", file, "--dry-run")
    assert dry == "CREATED   A\nNothing was changed: this was a dry run.\n"
    assert not EventType.objects.configured().exists()
    assert run("import_event_types", file) == "CREATED   A\n"
    EventType.objects.configured().update(description="other")
    assert run("import_event_types", file) == "CHANGED   A (description)\n"
    assert run("import_event_types", file) == "UNCHANGED A\n"


def test_the_command_line_prints_a_file_and_reports_errors(tmp_path: Path) -> None:
    factories.event_type("A")
    assert json.loads(run("export_event_types"))["event_types"][0]["name"] == "A"
    broken = tmp_path / "broken.json"
    broken.write_text('{"event_types": [{"name": "A", "kind": "SYNC"}]}')
    with pytest.raises(CommandError, match=r"Nothing was imported\.\n  /event_types/0/kind: A exists"):
        run("import_event_types", str(broken))
    with pytest.raises(CommandError, match=r"^/.*none\.json cannot be read: No such file or directory\.$"):
        run("import_event_types", str(tmp_path / "none.json"))
    with pytest.raises(CommandError, match=r"^/.* cannot be written: Is a directory\.$"):
        run("export_event_types", str(tmp_path))
