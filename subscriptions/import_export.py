"""Export event types to a file, `{"event_types": [{"name": …}, …]}`, and import them: all of a file or nothing."""

import codecs
import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpResponse

from broker_project.core.json import same_json, strict_json
from subscriptions import edit
from subscriptions.models import EventType
from subscriptions.models.event_types import EventTypeQuerySet

MAX_ENTRIES: Final = 1000
MAX_BYTES: Final = 16 * 1024 * 1024
TEXTS: Final = ("name", "kind", "content_type", "description", "sample")
FIELDS: Final = (*TEXTS, "schema")


class UnreadableFile(ValueError):
    """The text is not a file of event types; says why."""


class RefusedEntries(Exception):
    """Some entries cannot be imported, so none is; `problems` says which and why."""

    def __init__(self, problems: Sequence["EntryProblem"]) -> None:
        super().__init__("Nothing was imported; see errors.")
        self.problems = problems


class ImportVerdict(StrEnum):
    """What an import does to an event type."""

    CREATED = "CREATED"
    CHANGED = "CHANGED"
    UNCHANGED = "UNCHANGED"


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """Why an entry cannot be imported."""

    position: int
    """From 0."""
    message: str
    field: str = ""
    """"": the entry as a whole."""

    @property
    def pointer(self) -> str:
        """Its place in the file as a JSON pointer."""
        return f"/event_types/{self.position}" + (f"/{self.field}" if self.field else "")


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import does, or would do, to one event type."""

    event_type: EventType
    """As it is afterwards."""
    verdict: ImportVerdict
    changed: tuple[str, ...] = ()
    """The fields that change."""


def export_event_types(which: EventTypeQuerySet) -> str:
    """Return the text of a file with these event types, by name; without the broker's own, which no import takes."""
    content = {"event_types": [*which.configured().order_by("name").values(*FIELDS)]}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def download_of(which: EventTypeQuerySet) -> HttpResponse:
    """Return the answer that downloads a file with these event types."""
    disposition = {"Content-Disposition": 'attachment; filename="event-types.json"'}
    return HttpResponse(export_event_types(which), content_type="application/json", headers=disposition)


@transaction.atomic
def import_event_types(data: bytes, *, dry_run: bool) -> list[Imported]:
    """Create and change event types as the file says, in its order; with `dry_run` only return what would be done.

    Raise `UnreadableFile`, or `RefusedEntries` if some cannot be imported: then nothing is. `NameTaken`: another event
    type has just been created under one of the names.
    """
    entries, problems = entries_in(data)
    named = EventType.objects.filter(name__in=[fields["name"] for fields in entries.values()])
    known = {one.name: one for one in named.select_for_update(no_key=True).order_by("id")}
    planned = []
    for position, fields in entries.items():
        planned.append(_planned(fields, known.get(fields["name"])))
        problems += _problems_of_plan(position, planned[-1])
    if problems:
        raise RefusedEntries(sorted(problems, key=lambda problem: problem.position))
    if dry_run:
        return planned
    # In the order of names: two imports that create the same ones then wait for each other in one order.
    done = {plan.event_type.name: _carried_out(plan) for plan in sorted(planned, key=lambda plan: plan.event_type.name)}
    return [done[plan.event_type.name] for plan in planned]


def _planned(fields: dict[str, Any], known: EventType | None) -> Imported:
    """Return what an entry asks for; the event type is not saved, and may be invalid."""
    if known is None:
        return Imported(EventType(**fields), ImportVerdict.CREATED)
    changed = tuple(field for field, value in fields.items() if not same_json(getattr(known, field), value))
    for field in changed:
        setattr(known, field, fields[field])
    return Imported(known, ImportVerdict.CHANGED if changed else ImportVerdict.UNCHANGED, changed)


def _problems_of_plan(position: int, plan: Imported) -> Iterator[EntryProblem]:
    if "kind" in plan.changed:
        yield EntryProblem(position, f"{plan.event_type} exists, and the kind of an event type is fixed.", "kind")
    for check in (plan.event_type.clean_fields, plan.event_type.clean):
        try:
            check()
        except ValidationError as broken:
            for field, messages in broken.message_dict.items():
                yield from (EntryProblem(position, message, field) for message in messages)


def _carried_out(plan: Imported) -> Imported:
    if plan.verdict is ImportVerdict.CREATED:
        return replace(plan, event_type=edit.create(plan.event_type))
    if plan.verdict is ImportVerdict.CHANGED:
        which = EventType.objects.filter(pk=plan.event_type.pk)
        changes = {field: getattr(plan.event_type, field) for field in plan.changed}
        return replace(plan, event_type=edit.change(which, changes=changes))
    return plan


def entries_in(data: bytes) -> tuple[dict[int, dict[str, Any]], list[EntryProblem]]:
    """Return the fields of each entry by its position, from 0, and what is wrong with the entries.

    Problems are entries without a name or with one that came before, and fields that are unknown or not texts. An entry
    whose texts are valid is returned even so, without its unknown fields, so that further problems can be found. Raise
    `UnreadableFile` for text that is not such a file.
    """
    if len(data) > MAX_BYTES:
        raise UnreadableFile(f"A file has at most {MAX_BYTES} bytes; this one has {len(data)}.")
    try:
        value = strict_json(data.removeprefix(codecs.BOM_UTF8))
    except ValueError as broken:
        raise UnreadableFile(f"The file cannot be read as JSON: {broken}.") from None
    items = value.get("event_types") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(items, list):
        raise UnreadableFile("The file is not an object with one member, the list 'event_types'.")
    if len(items) > MAX_ENTRIES:
        raise UnreadableFile(f"A file has at most {MAX_ENTRIES} event types; this one has {len(items)}.")
    entries, problems, names = dict[int, dict[str, Any]](), list[EntryProblem](), set[str]()
    for position, item in enumerate(items):
        problems += _problems_of_item(position, item, names)
        if isinstance(item, dict) and "name" in item and not _broken_texts(item):
            names.add(item["name"])
            entries[position] = {field: value for field, value in item.items() if field in FIELDS}
    return entries, problems


def _problems_of_item(position: int, item: Any, names: Container[str]) -> Iterator[EntryProblem]:
    """Yield what is wrong with an entry, after others with those `names`."""
    if not isinstance(item, dict) or "name" not in item:
        yield EntryProblem(position, "An entry is an object with a name.")
        return
    for name in item:
        if name not in FIELDS:
            yield EntryProblem(position, f"There is no field {name[:100]!r}; they are {', '.join(FIELDS)}.")
    for name in _broken_texts(item):
        yield EntryProblem(position, "Give a text, without NUL characters.", name)
    if isinstance(item["name"], str) and item["name"] in names:
        yield EntryProblem(position, f"{item['name'][:100]} occurs in this file before.", "name")


def _broken_texts(item: dict[str, Any]) -> list[str]:
    """Return the fields that are not texts which the database can store."""
    return [name for name in TEXTS if name in item and (not isinstance(item[name], str) or "\0" in item[name])]
