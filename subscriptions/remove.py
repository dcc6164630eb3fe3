"""Delete configuration by version, unless something still needs it (contract 1.8)."""

from collections.abc import Iterable
from typing import Final

import psycopg.errors
from django.db import IntegrityError, transaction
from django.db.models import Model, ProtectedError, QuerySet

from subscriptions.edit import Configured, Versions, locked
from subscriptions.models import EventType, RetryPolicy
from subscriptions.models.base import Versioned

SHOWN_USERS: Final = 3
"""How many of those still using something are named."""


class StillInUse(Exception):
    """Something still needs what was to be removed; the text says what and what to do."""


def remove(which: QuerySet[Configured], *, expected: Versions | None = None) -> None:
    """Delete the one record in `which`.

    Raises:
        ObjectDoesNotExist: `which` is empty.
        VersionMismatch: its version is not among the `expected`.
        IsPreset: it came installed.
        StillInUse: something needs it, such as unfinished deliveries (contract 1.8).

    """
    try:
        with transaction.atomic():
            record = locked(which, expected)
            _refuse_widening(record)
            record.delete()
    except ProtectedError as refused:
        raise StillInUse(_who_needs(which, refused.protected_objects)) from refused
    except IntegrityError as refused:
        raise StillInUse(_why(refused)) from refused


def _refuse_widening(record: Versioned) -> None:
    """Raise `StillInUse` for an event type that limits a publisher: without its last one it could publish all."""
    if isinstance(record, EventType) and (limited := [*map(str, record.publishers.all()[: SHOWN_USERS + 1])]):
        raise StillInUse(f"{_some(limited)} may publish it by name; take it off their lists first.")


def _why(refused: IntegrityError) -> str:
    """Say what still needs a row; only unfinished deliveries refuse a deletion by themselves (contract 1.8)."""
    cause = refused.__cause__
    table = cause.diag.table_name if isinstance(cause, psycopg.Error) else None
    if table == "delivery_replay":
        return "A replay or backfill of it is under way; cancel that, or wait until it has ended."
    if table == "delivery_open":
        return (
            "It has unfinished deliveries; inactivate it, so that no more come, and cancel them (in the admin on its "
            "page, “Cancel unfinished deliveries”; over the API `cancel-deliveries`), then delete."
        )
    return "Something that was just created needs it; look again."


def _who_needs(which: QuerySet[Configured], users: Iterable[Model]) -> str:
    """Say who still needs what is in `which`, and what to do; a policy's followers need not go, only follow another."""
    if which.model is RetryPolicy:
        followers = _some(f"subscription {one.pk} ({one})" for one in users)
        return f"It is followed; choose another policy for {followers} first."
    return f"{_some(map(str, users))} still need it; delete those first."


def _some(users: Iterable[str]) -> str:
    """Name some of those that use something."""
    names = sorted(users)
    more = f" and {len(names) - SHOWN_USERS} more" if len(names) > SHOWN_USERS else ""
    return ", ".join(names[:SHOWN_USERS]) + more
