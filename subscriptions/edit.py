"""Create, change and delete configuration by version (compare and set); contract 1.8."""

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

import psycopg.errors
from django.db import IntegrityError, OperationalError, transaction
from django.db.models import Model, ProtectedError, QuerySet

from broker_project.core.db import rows
from broker_project.core.encryption import DecryptionFailed
from broker_project.core.json import same_json
from subscriptions.models import EventType, RetryPolicy, Subscription
from subscriptions.models.base import Versioned

Configured = TypeVar("Configured", bound=Versioned)

Versions = frozenset[int]
"""The versions that a caller is willing to change."""
SHOWN_USERS: Final = 3
"""Records that are named as still needing another."""
NEEDED_BY: Final = {
    "delivery_replay": "A replay or backfill of it is under way; cancel that, or wait until it has ended.",
    "delivery_open": (
        "It has unfinished deliveries; inactivate it, so that no more come, and cancel them (in the admin on its page, "
        "“Cancel unfinished deliveries”; over the API `cancel-deliveries`), then delete."
    ),
}
"""What needs a record, by the table whose foreign key or trigger refuses its deletion."""
LOCK_TIMEOUT: Final = "SET LOCAL lock_timeout = '2s'"
"""While a deletion waits for the transactions that publish already, new ones wait for the deletion."""
WAIT_FOR_PUBLISHERS: Final = "LOCK TABLE subscriptions_subscription IN EXCLUSIVE MODE"
"""The trigger that refuses the deletion needs this lock. Two deletions that both lock a row first would deadlock."""


class NameTaken(Exception):
    """Another record has this name already."""


class VersionMismatch(Exception):
    """The record has changed meanwhile."""


class IsPreset(Exception):
    """The record was installed with the broker and cannot change."""


class StillInUse(Exception):
    """Something still needs the record; the text says what, and what to do."""


def create(record: Configured, *, links: Mapping[str, Iterable[Model]] | None = None) -> Configured:
    """Store a new record with its many-to-many links; raise `ValidationError`, or `NameTaken` if its name is taken."""
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
    queryset: QuerySet[Configured], *, changes: Mapping[str, object], expected: Versions | None = None
) -> Configured:
    """Change the one record in `queryset`; equal values raise no version.

    Raises `ObjectDoesNotExist`, `VersionMismatch`, `IsPreset`, `ValidationError` or `NameTaken`.
    """
    try:
        with transaction.atomic():
            record = locked(queryset, expected)
            wanted = record.resolved(changes)
            if different := {name: value for name, value in wanted.items() if _differs(record, name, value)}:
                _write(record, different)
    except IntegrityError as refused:
        raise _named(refused) from refused
    return record


def locked(queryset: QuerySet[Configured], expected: Versions | None, *, to_delete: bool = False) -> Configured:
    """Return the one record, locked against changes; publishing, which only needs the row to stay, goes on.

    With `to_delete`, no new foreign key to it can be stored meanwhile.

    Raises:
        ObjectDoesNotExist: `queryset` is empty.
        VersionMismatch: its version is not among the `expected`.
        IsPreset: it was installed with the broker.
    """
    record = queryset.select_for_update(of=("self",), no_key=not to_delete).get()
    if expected is not None and record.version not in expected:
        raise VersionMismatch(f"It has changed meanwhile and is at version {record.version} now; read it again.")
    if record.is_built_in:
        instead = "; make one of your own" if isinstance(record, RetryPolicy) else ""
        raise IsPreset(f"{record} came installed and stays as it is{instead}.")
    return record


def _write(record: Versioned, changes: Mapping[str, object]) -> None:
    """Save the changes. Many-to-many links are in another table, but raise the version too."""
    record.remember(changes.keys())
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
    """Return `NameTaken` if a unique name was refused, else the error itself."""
    taken = isinstance(refused.__cause__, psycopg.errors.UniqueViolation)
    return NameTaken("This name is taken; names are unique.") if taken else refused


def remove(queryset: QuerySet[Configured], *, expected: Versions | None = None) -> None:
    """Delete the one record in `queryset`; raise `StillInUse` if something needs it, else as `locked`."""
    try:
        with transaction.atomic():
            if queryset.model is Subscription:
                rows(LOCK_TIMEOUT)
                rows(WAIT_FOR_PUBLISHERS)
            record = locked(queryset, expected, to_delete=True)
            # a publisher that has lost the last of its event types could publish all
            if isinstance(record, EventType) and (limited := [*map(str, record.publishers.all()[: SHOWN_USERS + 1])]):
                raise StillInUse(f"{_some(limited)} may publish it by name; take it off their lists first.")
            record.delete()
    except ProtectedError as refused:
        if queryset.model is RetryPolicy:
            followers = _some(f"subscription {one.pk} ({one})" for one in refused.protected_objects)
            raise StillInUse(f"It is followed; choose another policy for {followers} first.") from refused
        users = _some(map(str, refused.protected_objects))
        raise StillInUse(f"{users} still need it; delete those first.") from refused
    except OperationalError as refused:
        if isinstance(refused.__cause__, psycopg.errors.LockNotAvailable):
            raise StillInUse("Something that publishes or changes subscriptions takes long; try again.") from refused
        raise
    except IntegrityError as refused:
        cause = refused.__cause__
        table = cause.diag.table_name if isinstance(cause, psycopg.Error) else None
        raise StillInUse(
            NEEDED_BY.get(table or "", "Something that was just created needs it; look again.")
        ) from refused


def _some(users: Iterable[str]) -> str:
    """Return the names of the first users, and how many more there are."""
    names = sorted(users)
    more = f" and {len(names) - SHOWN_USERS} more" if len(names) > SHOWN_USERS else ""
    return ", ".join(names[:SHOWN_USERS]) + more
