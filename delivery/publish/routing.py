"""Which subscriptions get a message, in which QUEUE groups, and the outcome for the message (2.8, 2.14, 6.3)."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import orjson
import structlog
from django.db.models import QuerySet

from broker_project.core.db import rows
from delivery.models import MessageOutcome
from delivery.publish.draft import parse_destination
from subscriptions.filters import Document, FilterFailed, FilterSyntaxError, cached_filter, text_at
from subscriptions.lookup_keys import Addressed
from subscriptions.matching import KEY_PATH, NO_DELETION, Match, matching_subscriptions, qualified
from subscriptions.models import Subscription
from subscriptions.models.subscribers import EACH_SUBSCRIBER
from subscriptions.names import REACHED_KIND, patterns_of

UNRECEIVED: Final = {
    MessageOutcome.UNROUTED: "message.unrouted",
    MessageOutcome.DISCARDED: "message.discarded",
    MessageOutcome.DEAD_LETTERED: "message.dead_lettered",
}
"""Outcomes of messages that no subscription gets, with their log events (contract 11.2)."""

MAX_KEY_BYTES: Final = 200
"""Of an ordering key in UTF-8: percent-encoded, it is a header of 600 bytes at most."""

SENDER_LINE: Final = "(%(senders)s::bigint[])[1 + m.id %% cardinality(%(senders)s::bigint[])]"
"""The sender's line of a QUEUE message `m`: the remainder of its id by the number of senders (contract 6.2).

`senders` are the ids of their lines, from `sender_lines`.
"""
SENDERS: Final = "SELECT id, queue FROM delivery_line WHERE sender < %s ORDER BY sender"
ADD_SENDERS: Final = """
INSERT INTO delivery_line (lane, sender) SELECT 'queue', n FROM generate_series(0, %s::int - 1) AS n
ON CONFLICT (sender) DO NOTHING
"""

CANDIDATES: Final = f"""
SELECT a.place, s.id, u.id, s.filter, s.delivery_mode = 'PULL', u.key_path
  FROM json_to_recordset(%s::json)
         AS a (place bigint, subscriber text, position bigint, subscription_id bigint, event_type_id bigint,
               patterns text[], filter_string text)
 CROSS JOIN LATERAL (
   (SELECT id, status, {KEY_PATH} FROM subscriptions_subscriber WHERE name = a.subscriber ORDER BY name LIMIT 1)
   UNION ALL
   (SELECT id, status, {KEY_PATH} FROM subscriptions_subscriber
     WHERE id = (SELECT subscriber_id FROM subscriptions_subscription WHERE id = a.subscription_id ORDER BY id LIMIT 1)
     ORDER BY id LIMIT 1)) u
  LEFT JOIN LATERAL (
   SELECT id, position, filter, header_filter_string, delivery_mode, status FROM subscriptions_subscription
    WHERE subscriber_id = u.id AND u.status = 'ACTIVE'
      AND (event_type_id = a.event_type_id OR event_pattern = ANY (a.patterns))
      AND header_filter_string IN ('', a.filter_string)
      AND position = COALESCE(a.position, position) AND id = COALESCE(a.subscription_id, id)
   OFFSET 0) s ON s.status = 'ACTIVE'
 WHERE {NO_DELETION}
   AND (a.position IS NULL OR (
     SELECT true FROM subscriptions_subscription
      WHERE subscriber_id = u.id AND position = a.position ORDER BY subscriber_id LIMIT 1))
 ORDER BY a.place, s.position, s.id
"""
"""The destination's subscriptions. A row without a subscription: none of them qualifies; no row: there is no such
destination.

LATERAL with LIMIT 1 forces one index look-up for each name: a join would scan the whole table. The status is compared
outside: inside, the planner could read the whole of an index that has active subscriptions only.
"""

log = structlog.get_logger(__name__)


class Directed(Addressed, Protocol):
    """A message, as far as it decides which subscriptions get it."""

    @property
    def destination(self) -> str | None:
        """A subscriber or a subscription, `default`, or None."""


class Route(NamedTuple):
    """The subscriptions that get one message, and what that makes of it."""

    matches: Sequence[Match]
    outcome: MessageOutcome


def routes_of(messages: Sequence[Directed]) -> list[Route]:
    """Return each message's route, in their order; no subscription is deleted before the transaction ends."""
    routes: dict[int, Route] = {}
    named = {n: one for n, one in enumerate(messages) if one.destination not in (None, EACH_SUBSCRIBER)}
    if named:
        for place, match in zip(named, _directed([*named.values()]), strict=True):
            routes[place] = _route(match, MessageOutcome.DEAD_LETTERED if match is None else MessageOutcome.DISCARDED)
    others = {n: one for n, one in enumerate(messages) if n not in named}
    if others:
        found = matching_subscriptions([*others.values()])
        for (place, message), matches in zip(others.items(), found, strict=True):
            by_subscriber = itertools.groupby(matches, key=attrgetter("subscriber_id"))  # they are sorted by it
            received = [next(group) for _, group in by_subscriber] if message.destination else matches
            routes[place] = _route(received, MessageOutcome.UNROUTED)
    return [routes[place] for place in range(len(messages))]


def _route(matches: Sequence[Match] | None, otherwise: MessageOutcome) -> Route:
    return Route(matches, MessageOutcome.ROUTED) if matches else Route((), otherwise)


def _directed(messages: Sequence[Directed]) -> list[list[Match] | None]:
    """Return the match of each message that names its destination, as a list of one or none; None: it is unknown.

    It is the destination's first subscription, by position and id, whose filter is true or fails.
    """
    asked = [
        {
            "place": place,
            **parse_destination(message.destination or "")._asdict(),
            "event_type_id": message.event_type_id,
            "patterns": patterns_of(message.event_type) if message.kind == REACHED_KIND else (),
            "filter_string": message.filter_string or "",
        }
        for place, message in enumerate(messages)
    ]
    found: dict[int, list[Match]] = defaultdict(list)
    for place, subscription_id, *columns in rows(CANDIDATES, [orjson.dumps(asked).decode()]):
        of_place = found[place]
        if subscription_id is not None:
            of_place.append(Match(len(of_place), subscription_id, *columns))
    return [
        [*itertools.islice(qualified(found[place], one.document), 1)] if place in found else None
        for place, one in enumerate(messages)
    ]


def named_by(destination: str | None) -> QuerySet[Subscription] | None:
    """Return the subscriptions that a destination names, the same as `CANDIDATES`; None: all."""
    if destination is None or destination == EACH_SUBSCRIBER:
        return None
    to = parse_destination(destination)
    columns = {"pk": to.subscription_id, "subscriber__name": to.subscriber, "position": to.position}
    return Subscription.objects.filter(**{name: value for name, value in columns.items() if value is not None})


def ordering_key_of(path: str, document: Document) -> str:
    """Return the key at a path, within which the order of a message's deliveries counts (contract 4.18).

    Empty without a path, if the message has none there, or if it cannot be read. A key that is longer than
    `MAX_KEY_BYTES`, or that PostgreSQL cannot store, is replaced by its hash.
    """
    try:
        key = (text_at(document, path) or "") if path else ""
    except (FilterFailed, FilterSyntaxError):
        return ""
    encoded = key.encode(errors="surrogatepass")
    is_text = "\0" not in key and encoded == key.encode(errors="replace")
    if is_text and len(encoded) <= MAX_KEY_BYTES:
        return key
    return f"sha256:{sha256(encoded).hexdigest()}"


def filter_groups(matches: Iterable[Match]) -> list[list[Match]]:
    """Return the groups of one message's matches, in the order of their first subscriptions.

    Subscriptions with the same filter form a group (contract 6.3): the header filter makes no difference, nor do white
    space and the case of keywords.
    """
    groups: dict[str, list[Match]] = {}
    for match in matches:
        try:
            canonical = cached_filter(match.filter).canonical if match.filter else ""
        except FilterSyntaxError:
            canonical = match.filter
        groups.setdefault(canonical, []).append(match)
    return [*groups.values()]


def failure_of(group: Sequence[Match]) -> str:
    """Return why a group is HELD, empty if it is not: one filter that could be evaluated speaks for all (3.6)."""
    return "" if any(not match.failure for match in group) else group[0].failure


def sender_lines(senders: int) -> dict[int, str]:
    """Return the Celery queue of each sender's line, by its id, in the order of senders; add missing lines."""
    lines: dict[int, str] = dict(rows(SENDERS, [senders]))
    if len(lines) < senders:
        rows(ADD_SENDERS, [senders])
        lines = dict(rows(SENDERS, [senders]))  # with those that other processes have added meanwhile
    return lines


def log_unreceived(ids: Sequence[int | str], messages: Sequence[Directed], routes: Sequence[Route]) -> None:
    """Log the messages that no subscription gets."""
    for message_id, message, route in zip(ids, messages, routes, strict=True):
        if event := UNRECEIVED.get(route.outcome):
            log.info(event, message_id=message_id, event_type=message.event_type, destination=message.destination)
