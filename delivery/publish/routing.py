"""Whom a message goes to that names its destination: the first that qualifies, and nobody else (behaviour 2.8)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import orjson

from broker_project.core.db import rows
from subscriptions.candidates import Candidate, locked
from subscriptions.filters import Work
from subscriptions.lookup_keys import Addressed
from subscriptions.matching import Match, qualified
from subscriptions.patterns import REACHED_KIND, patterns_of

CANDIDATES: Final = """
SELECT a.place, s.id, u.id, s.filter, s.header_filter_string <> '', s.delivery_mode = 'PULL'
  FROM json_to_recordset(%s::json)
         AS a (place bigint, destination text, event_type_id bigint, patterns text[], filter_string text)
 CROSS JOIN LATERAL (
   SELECT id, status FROM subscriptions_subscriber WHERE name = a.destination ORDER BY name LIMIT 1) u
  LEFT JOIN LATERAL (
   SELECT id, position, filter, header_filter_string, delivery_mode FROM subscriptions_subscription
    WHERE subscriber_id = u.id AND status = 'ACTIVE' AND u.status = 'ACTIVE'
      AND (event_type_id = a.event_type_id OR event_pattern = ANY (a.patterns))
      AND header_filter_string IN ('', a.filter_string)
   OFFSET 0) s ON true
 ORDER BY a.place, s.position, s.id
"""
"""A row without a subscription says that there is somebody of this name; none, that there is nobody.

Name by name, and said so: all of them at once would be looked for in the whole table.
"""


class Directed(Addressed, Protocol):
    """What decides who gets a message, where it says so itself."""

    @property
    def destination(self) -> str | None:
        """The subscriber's name."""


def directed(messages: Sequence[Directed], *, lock: bool = True) -> list[list[Match] | None]:
    """Return for each message whom of its destination's subscriptions it goes to: one, or none.

    None where nobody is called so. The one is the first, by position and id, whose filter is true, or fails: then
    nobody knows. It is locked against deletion, if wanted.
    """
    while True:
        found = _found(messages)
        wanted = {match.subscription_id for matches in found for match in matches or ()}
        if not lock or locked(wanted) == wanted:
            return found


def _found(messages: Sequence[Directed]) -> list[list[Match] | None]:
    candidates, work = _candidates(messages), Work()
    return [
        [*islice(qualified(candidates[place], message.document, work), 1)] if place in candidates else None
        for place, message in enumerate(messages)
    ]


def _candidates(messages: Sequence[Directed]) -> Mapping[int, list[Candidate]]:
    """Return the destinations' subscriptions by the message's place; those of nobody are missing."""
    found: dict[int, list[Candidate]] = defaultdict(list)
    asked = [
        {
            "place": place,
            "destination": message.destination,
            "event_type_id": message.event_type_id,
            "patterns": patterns_of(message.event_type) if message.kind == REACHED_KIND else (),
            "filter_string": message.filter_string or "",
        }
        for place, message in enumerate(messages)
    ]
    for place, subscription_id, *columns in rows(CANDIDATES, [orjson.dumps(asked).decode()]):
        of_place = found[place]
        if subscription_id is not None:
            of_place.append(Candidate(len(of_place), subscription_id, *columns))
    return found
