"""Create and change configuration by version (compare and set)."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

import psycopg.errors
from django.db import IntegrityError, transaction
from django.db.models import Model, QuerySet

from broker_project.core.encryption import DecryptionFailed
from broker_project.core.json import same_json
from subscriptions.models import RetryPolicy
from subscriptions.models.base import Versioned

Configured = TypeVar("Configured", bound=Versioned)

Versions = frozenset[int]
"""The versions a caller is willing to change."""


class NameTaken(Exception):
    """Another one has this name already."""


class VersionMismatch(Exception):
    """Somebody else has changed it meanwhile."""


class IsPreset(Exception):
    """It came installed and stays as it is."""


def create(record: Configured, *, links: Mapping[str, Iterable[Model]] | None = None) -> Configured:
    """Store a new record and its links to many others.

    Raises:
        ValidationError: its fields do not go together, or not with another record.
        NameTaken: another one has its name.

    """
    try:
        record.clean()
        with transaction.atomic():
            record.clean_among_others()
            record.save(force_insert=True)
            for name, targets in (links or {}).items():
                getattr(record, name).set(targets)
    except IntegrityError as refused:
        raise _named(refused) from refused
    return record


def change(
    which: QuerySet[Configured], *, changes: Mapping[str, object], expected: Versions | None = None
) -> Configured:
    """Set the `changes` of the one record in `which`; what already is so raises no version.

    Raises:
        ObjectDoesNotExist: `which` is empty.
        VersionMismatch: its version is not among the `expected`.
        IsPreset: it came installed.
        ValidationError: its fields would not go together any more, or not with another record.
        NameTaken: another one has its new name.

    """
    try:
        with transaction.atomic():
            record = locked(which, expected)
            wanted = record.resolved(changes)
            _write(record, {name: value for name, value in wanted.items() if _differs(record, name, value)})
    except IntegrityError as refused:
        raise _named(refused) from refused
    return record


def locked(which: QuerySet[Configured], expected: Versions | None) -> Configured:
    """Return the one record, locked; publishing, which only needs the row to stay, goes on meanwhile."""
    record = which.select_for_update(of=("self",), no_key=True).get()
    if expected is not None and record.version not in expected:
        raise VersionMismatch(f"It has changed meanwhile and is at version {record.version} now; read it again.")
    if record.is_built_in:
        instead = "; make one of your own" if isinstance(record, RetryPolicy) else ""
        raise IsPreset(f"{record} came installed and stays as it is{instead}.")
    return record


def _write(record: Versioned, changes: Mapping[str, object]) -> None:
    """Save what changes; a link to many others raises the version too, though it stands in another table."""
    if not changes:
        return
    many = {field.name for field in record._meta.many_to_many}  # noqa: SLF001 - documented by Django
    for name, value in changes.items():
        getattr(record, name).set(value) if name in many else setattr(record, name, value)
    record.clean()
    if not record.compared.isdisjoint(changes):
        record.clean_among_others()
    along = record.change_along(changes)
    record.save(update_fields=[*(changes.keys() - many), *along, *record.derived, "updated_at"])
    record.refresh_from_db(fields=["version", "updated_at"])


def _differs(record: Versioned, name: str, value: object) -> bool:
    try:
        now = getattr(record, name)
    except DecryptionFailed:
        return True
    if isinstance(value, list) and hasattr(now, "all"):
        return set(now.all()) != set(value)
    return not same_json(now, value)


def _named(refused: IntegrityError) -> Exception:
    """Return `NameTaken` where a unique name was refused, else what the database said."""
    taken = isinstance(refused.__cause__, psycopg.errors.UniqueViolation)
    return NameTaken("This name is taken; names are unique.") if taken else refused
