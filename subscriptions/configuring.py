"""Configuring: creating, changing and removing what is configured, by version (compare and set)."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import psycopg.errors
from django.db import IntegrityError, transaction
from django.db.models import Model, ProtectedError, QuerySet

from subscriptions.json_equality import same_json
from subscriptions.models import EventType, Subscription
from subscriptions.models.versioned import Versioned
from subscriptions.signing_secrets import secret_of

Configured = TypeVar("Configured", bound=Versioned)

Versions = frozenset[int]
"""The versions a caller is willing to change."""

SHOWN_USERS: Final = 3
"""How many of those still using something are named."""


class NameTaken(Exception):
    """Another one has this name already."""


class VersionMismatch(Exception):
    """Somebody else has changed it meanwhile."""


class IsPreset(Exception):
    """It came installed and stays as it is."""


class StillInUse(Exception):
    """Something still needs what was to be removed; the text says what and what to do."""


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
            record = _locked(which, expected)
            _write(record, {name: value for name, value in changes.items() if _differs(record, name, value)})
    except IntegrityError as refused:
        raise _named(refused) from refused
    return record


def remove(which: QuerySet[Configured], *, expected: Versions | None = None) -> None:
    """Delete the one record in `which`.

    Raises:
        ObjectDoesNotExist: `which` is empty.
        VersionMismatch: its version is not among the `expected`.
        IsPreset: it came installed.
        StillInUse: something needs it, such as unfinished deliveries (behaviour 1.8).

    """
    try:
        with transaction.atomic():
            record = _locked(which, expected)
            _refuse_widening(record)
            record.delete()
    except ProtectedError as refused:
        raise StillInUse(f"{_some(refused.protected_objects)} still need it; delete those first.") from refused
    except IntegrityError as refused:
        raise StillInUse(_why(refused)) from refused


def rotate_secret(
    which: QuerySet[Subscription], *, random_bytes: bytes, expected: Versions | None = None
) -> Subscription:
    """Give the one subscription in `which` a new signing secret."""
    return change(which, changes={"signing_secret": secret_of(random_bytes)}, expected=expected)


def _locked(which: QuerySet[Configured], expected: Versions | None) -> Configured:
    """Return the one record, locked; publishing, which only needs the row to stay, goes on meanwhile."""
    record = which.select_for_update(of=("self",), no_key=True).get()
    if expected is not None and record.version not in expected:
        raise VersionMismatch(f"It has changed meanwhile and is at version {record.version} now; read it again.")
    if record.came_installed:
        raise IsPreset(f"{record} came installed and stays as it is; make one of your own.")
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
    record.save(update_fields=[*(changes.keys() - many), *record.derived, "updated_at"])
    record.refresh_from_db(fields=["version", "updated_at"])


def _differs(record: Versioned, name: str, value: object) -> bool:
    now = getattr(record, name)
    if isinstance(value, list) and hasattr(now, "all"):
        return set(now.all()) != set(value)
    return not same_json(now, value)


def _refuse_widening(record: Versioned) -> None:
    """Raise `StillInUse` for an event type that limits a publisher: without its last one it could publish all."""
    if isinstance(record, EventType) and (limited := list(record.publishers.all()[: SHOWN_USERS + 1])):
        raise StillInUse(f"{_some(limited)} may publish it by name; take it off their lists first.")


def _named(refused: IntegrityError) -> Exception:
    """Return `NameTaken` where a unique name was refused, else what the database said."""
    taken = isinstance(refused.__cause__, psycopg.errors.UniqueViolation)
    return NameTaken("This name is taken; names are unique.") if taken else refused


def _why(refused: IntegrityError) -> str:
    """Say what still needs a row; only unfinished deliveries refuse a deletion by themselves (behaviour 1.8)."""
    cause = refused.__cause__
    table = cause.diag.table_name if isinstance(cause, psycopg.Error) else None
    if table == "delivery_open":
        return (
            "It has unfinished deliveries; inactivate it and wait until they have ended, or cancel them (in the admin "
            "on its page, “Cancel unfinished deliveries”; over the API `cancel-deliveries`), then delete."
        )
    return "Something that was just created needs it; look again."


def _some(users: Iterable[Model]) -> str:
    """Name some of those that use something."""
    names = sorted(str(user) for user in users)
    more = f" and {len(names) - SHOWN_USERS} more" if len(names) > SHOWN_USERS else ""
    return ", ".join(names[:SHOWN_USERS]) + more
