"""What an event of the broker's own says: ids, names, why and when; never headers, never a payload (behaviour 5.7)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

TOLD: Final = ("status", "pause", "reason", "attempts", "fetches", "since")
"""Of the details recorded with an occasion those that are published, whatever else is there."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """One thing that has gone wrong, or goes right again."""

    id: int
    kind: str
    """The event type's name."""
    at: datetime
    details: dict[str, Any]
    subscriber: str | None
    subscription_id: int | None
    events: str | None
    """What the subscription is for: an event type's name, or a pattern."""
    delivery_id: int | None
    callback_id: int | None
    """Of a line that is a callback's."""

    @property
    def document(self) -> bytes:
        """The JSON object that is published: what does not apply is left out."""
        said = {
            "announcement": self.id,
            "at": self.at,
            "subscriber": self.subscriber,
            "subscription": self.subscription_id,
            "events": self.events,
            "delivery": self.delivery_id,
            "callback": self.callback_id,
            **{name: self.details.get(name) for name in TOLD},
        }
        return orjson.dumps({name: value for name, value in said.items() if value not in {None, ""}})
