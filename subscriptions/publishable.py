"""Event types, as far as a publish is checked against them (contract 1.1, 1.2)."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from broker_project.core.db import rows
from subscriptions.names import is_name

COLUMNS: Final = """e.id, e.kind, e.content_type, CASE WHEN e.schema IS NOT NULL THEN e.version END,
       NOT EXISTS (SELECT FROM subscriptions_publisher_event_types p WHERE p.publisher_id = k.publisher_id)
       OR EXISTS (SELECT FROM subscriptions_publisher_event_types p
                   WHERE p.publisher_id = k.publisher_id AND p.eventtype_id = e.id)"""
"""What is read of an event type `e`, for the publisher of `k`; in the order of `Publishable`."""
PUBLISHABLE: Final = f"""
SELECT k.number, {COLUMNS}
  FROM unnest(%s::bigint[], %s::text[]) WITH ORDINALITY AS k (publisher_id, name, number)
  JOIN subscriptions_eventtype e ON e.name = k.name
"""

Named = tuple[int | None, str]
"""A publisher, or None (management, which may publish all), and the name of an event type."""


@dataclass(frozen=True, slots=True)
class Publishable:
    """What a publish is checked against: an event type, for one publisher."""

    id: int
    kind: str
    content_type: str
    schema_version: int | None
    """None: it has no schema."""
    is_allowed: bool
    """Whether this publisher may publish it."""


def publishable(asked: Collection[Named]) -> dict[Named, Publishable]:
    """Return the event types that exist, for the publishers that ask for them."""
    storable = [one for one in asked if is_name(one[1])]
    columns = [publisher_id for publisher_id, _ in storable], [name for _, name in storable]
    found = rows(PUBLISHABLE, columns) if storable else []
    return {storable[number - 1]: Publishable(*of_type) for number, *of_type in found}
