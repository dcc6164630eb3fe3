"""Validating payloads by their event type's schema, as it is in force (behaviour 2.5)."""

from functools import lru_cache
from typing import Final

from broker_project.core.db import rows
from subscriptions.schemas import BrokenSchema, Schema, Violation, compiled
from subscriptions.schemas.schema import KEPT

SCHEMA: Final = "SELECT schema FROM subscriptions_eventtype WHERE id = %s"


def violations_of(payload: bytes, *, event_type_id: int, version: int) -> list[Violation]:
    """Return what in a JSON payload breaks the schema of the event type, which the caller has just read at `version`.

    Nothing if there is nothing wrong, or no schema any more.
    """
    try:
        schema = _in_force(event_type_id, version)
    except BrokenSchema as broken:  # stored by other hands, or before a limit that is new
        return [Violation("", f"The schema itself cannot be used. {broken}")]
    return schema.violations(payload) if schema else []


@lru_cache(maxsize=KEPT)
def _in_force(event_type_id: int, version: int) -> Schema | None:  # noqa: ARG001 - what is cached is so until it rises
    """Return the event type's schema: of that version, or of a newer one that has come since it was read."""
    found = rows(SCHEMA, [event_type_id])
    return compiled(found[0][0]) if found and found[0][0] is not None else None
