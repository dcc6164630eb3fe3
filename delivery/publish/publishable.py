"""The event types of what is published: which there are, and who may publish what (behaviour 1.1, 1.2)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from broker_project.core.db import rows
from delivery.publish.errors import EventTypeNotAllowed, InvalidMetadata, UnknownEventType
from subscriptions.names import is_name, is_own

PUBLISHABLE: Final = """
SELECT e.name, e.id, e.kind, e.content_type, CASE WHEN e.schema IS NOT NULL THEN e.version END,
       NOT EXISTS (SELECT FROM subscriptions_publisher_event_types p WHERE p.publisher_id = %(publisher)s)
       OR EXISTS (SELECT FROM subscriptions_publisher_event_types p
                   WHERE p.publisher_id = %(publisher)s AND p.eventtype_id = e.id)
  FROM subscriptions_eventtype e WHERE e.name = ANY(%(names)s)
"""


@dataclass(frozen=True, slots=True)
class Publishable:
    """What is checked of an event type."""

    id: int
    kind: str
    content_type: str
    schema_version: int | None
    """None: it has no schema."""
    allowed: bool


def publishable(names: Collection[str], publisher_id: int | None) -> dict[str, Publishable]:
    """Return the event types of these names that exist; None publishes as management does, all of them."""
    storable = sorted(name for name in names if is_name(name))
    found = rows(PUBLISHABLE, {"publisher": publisher_id, "names": storable})
    return {name: Publishable(*columns) for name, *columns in found}


def allowed(name: str, event_types: Mapping[str, Publishable], kinds: Collection[str]) -> Publishable:
    """Return the event type of this name.

    Raises:
        UnknownEventType: there is none.
        EventTypeNotAllowed: this publisher may not publish it, or nobody.
        InvalidMetadata: it is of none of these kinds.

    """
    if name not in event_types:
        raise UnknownEventType(f"There is no event type {name[:255]!r}; create it before publishing.")
    event_type = event_types[name]
    if is_own(name):
        raise EventTypeNotAllowed(f"{name} is the broker's own; nobody else publishes it.")
    if not event_type.allowed:
        raise EventTypeNotAllowed(f"This publisher may not publish {name}.")
    if event_type.kind not in kinds:
        raise InvalidMetadata(f"{name} is of kind {event_type.kind}, answered by its endpoint: publish it by itself.")
    return event_type
