"""Which subscriptions a message qualifies for (behaviour 2.2)."""

from collections import defaultdict
from collections.abc import Collection
from typing import Final, NamedTuple

from subscriptions.database import rows

QUALIFYING: Final = """
SELECT k.position, s.id, s.subscriber_id
  FROM unnest(%s::bigint[], %s::text[]) WITH ORDINALITY AS k (event_type_id, filter_string, position)
  JOIN subscriptions_subscription s
    ON s.event_type_id = k.event_type_id AND s.status = 'ACTIVE' AND s.header_filter_string IN ('', k.filter_string)
  JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
 ORDER BY k.position, s.subscriber_id, s.position, s.id
   FOR KEY SHARE OF s
"""
"""Asked anew for every publish: a change counts from the next one on (behaviour 3.7).

Locked against deletion, as the deliveries' foreign key would do anyway: whoever deletes a subscription waits for the
publish and is then refused, instead of making the publish fail.
"""


class Kind(NamedTuple):
    """All that decides who gets a message; those of one kind go to the same subscriptions."""

    event_type_id: int
    filter_string: str | None
    """The header `FILTER_STRING`, compared literally."""


class Match(NamedTuple):
    """A subscription that qualifies."""

    subscription_id: int
    subscriber_id: int


def matching_subscriptions(kinds: Collection[Kind]) -> dict[Kind, list[Match]]:
    """Return the subscriptions that get a message of each kind, all in one query.

    Both they and their subscribers are active. In position order within each subscriber.
    """
    asked = list(kinds)
    found: dict[Kind, list[Match]] = defaultdict(list)
    columns = [[kind.event_type_id for kind in asked], [kind.filter_string or "" for kind in asked]]
    for position, *match in rows(QUALIFYING, columns):
        found[asked[position - 1]].append(Match(*match))
    return found
