"""Export event types to a file and import them: all of a file or nothing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from broker_project.core.json import same_json
from subscriptions import edit
from subscriptions.import_export import Entry, EntryProblem, FileFormat, RefusedEntries, entries_in, file_text
from subscriptions.import_export.file_format import FIELDS
from subscriptions.models import EventType


class ImportVerdict(StrEnum):
    """What an import makes of an event type."""

    CREATED = "CREATED"
    CHANGED = "CHANGED"
    UNCHANGED = "UNCHANGED"


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import makes, or would make, of one event type."""

    event_type: EventType
    """As it is afterwards."""
    verdict: ImportVerdict
    changed: tuple[str, ...] = ()
    """The fields that change."""


def export_event_types(which: QuerySet[EventType], written_in: FileFormat) -> str:
    """Return the text of a file that says all of these event types, by name."""
    return file_text(which.order_by("name").values(*FIELDS), written_in)


@transaction.atomic
def import_event_types(data: bytes, *, dry_run: bool) -> list[Imported]:
    """Create and change event types as the file says, in its order, or with `dry_run` say what would be done.

    Raises:
        UnreadableFile: it is no file of event types.
        RefusedEntries: some cannot be imported; nothing is.
        NameTaken: another one has just been created under one of the names.

    """
    entries, problems = entries_in(data)
    named = EventType.objects.filter(name__in=[entry.name for entry in entries])
    known = {one.name: one for one in named.select_for_update(no_key=True).order_by("id")}
    planned = []
    for entry in entries:
        planned.append(_planned(entry, known.get(entry.name)))
        problems += _problems(entry.position, planned[-1])
    if problems:
        raise RefusedEntries(sorted(problems, key=lambda problem: problem.position))
    return planned if dry_run else [_done(plan) for plan in planned]


def _planned(entry: Entry, known: EventType | None) -> Imported:
    """Return what the entry asks for; its event type is not stored, and may be impossible."""
    if known is None:
        return Imported(EventType(**entry.fields), ImportVerdict.CREATED)
    changed = tuple(field for field, value in entry.fields.items() if not same_json(getattr(known, field), value))
    for field in changed:
        setattr(known, field, entry.fields[field])
    return Imported(known, ImportVerdict.CHANGED if changed else ImportVerdict.UNCHANGED, changed)


def _problems(position: int, plan: Imported) -> Iterator[EntryProblem]:
    if "kind" in plan.changed:
        yield EntryProblem(position, f"{plan.event_type} exists, and the kind of an event type is fixed.", "kind")
    for check in (plan.event_type.clean_fields, plan.event_type.clean):
        try:
            check()
        except ValidationError as broken:
            yield from (
                EntryProblem(position, message, field)
                for field, messages in broken.message_dict.items()
                for message in messages
            )


def _done(plan: Imported) -> Imported:
    if plan.verdict is ImportVerdict.CREATED:
        return replace(plan, event_type=edit.create(plan.event_type))
    if plan.verdict is ImportVerdict.CHANGED:
        which = EventType.objects.filter(pk=plan.event_type.pk)
        changes = {field: getattr(plan.event_type, field) for field in plan.changed}
        return replace(plan, event_type=edit.change(which, changes=changes))
    return plan
