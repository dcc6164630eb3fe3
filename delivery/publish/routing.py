"""Who gets a message, in which QUEUE groups and lines, and what that makes of the message (contract 2.8, 2.14, 6.3)."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

import orjson
import structlog

from broker_project.core.db import rows
from delivery.models import MessageOutcome
from subscriptions.filters import FilterSyntaxError, Work, kept_filter
from subscriptions.lookup_keys import Addressed
from subscriptions.matching import Candidate, Match, locked, matching_subscriptions, qualified
from subscriptions.models import EventKind
from subscriptions.models.subscribers import EACH_SUBSCRIBER
from subscriptions.names import REACHED_KIND, patterns_of

SENDERS: Final = "SELECT id, queue FROM delivery_line WHERE sender < %s ORDER BY sender"
GIVE_SENDERS_LINES: Final = """
INSERT INTO delivery_line (lane, sender) SELECT 'queue', n FROM generate_series(0, %s::int - 1) AS n
ON CONFLICT (sender) DO NOTHING
"""

Placed = tuple[int, int, int, str, int]
"""One delivery: its message's place from 1 on, subscription, subscriber, why it is HELD, and its group's number.

Groups are numbered from 1 on through all messages; 0 is none.
"""

log = structlog.get_logger(__name__)


class Qualified(Protocol):
    """A subscription that a message qualifies for, or may qualify for."""

    @property
    def filter(self) -> str:
        """Its filter's text; empty where it has none."""

    @property
    def by_header(self) -> bool:
        """Whether it has a header filter, which is then the message's FILTER_STRING."""

    @property
    def failure(self) -> str:
        """Why its filter could not be evaluated."""


One = TypeVar("One", bound=Qualified)


def groups_of(qualified: Iterable[One]) -> list[list[One]]:
    """Return the groups, in the order of their first subscriptions, of those that one message qualifies for.

    They are for the same event type. Those with the same header filter and the same filter form a group: filters are
    the same if they differ in white space or the case of keywords only.
    """
    groups: dict[tuple[bool, str], list[One]] = {}
    for one in qualified:
        groups.setdefault((one.by_header, _canonical(one.filter)), []).append(one)
    return [*groups.values()]


def failure_of(group: Sequence[Qualified]) -> str:
    """Return why a group is HELD (contract 3.6), empty if it is not: what one of like filters says holds for all."""
    return "" if any(not one.failure for one in group) else group[0].failure


def _canonical(text: str) -> str:
    try:
        return kept_filter(text).canonical if text else ""
    except FilterSyntaxError:
        return text


class OfKind(Protocol):
    """A message, by its event type's kind."""

    @property
    def kind(self) -> str:
        """TOPIC or QUEUE."""


def placed(messages: Sequence[OfKind], matches: Sequence[Sequence[Match]]) -> Iterator[Placed]:
    """Yield a delivery for every subscription that a message qualifies for, in the order of the messages."""
    numbers = itertools.count(1)
    for place, (message, candidates) in enumerate(zip(messages, matches, strict=True), 1):
        if message.kind != EventKind.QUEUE:
            yield from ((place, *match[:3], 0) for match in candidates)
            continue
        for group in groups_of(candidates):
            number, failure = next(numbers), failure_of(group)
            yield from ((place, one.subscription_id, one.subscriber_id, failure, number) for one in group)


def sender_lines(senders: int) -> dict[int, str]:
    """Return the Celery queue of each sender's line, by its id, in the order of senders; made where one is missing."""
    lines = dict(rows(SENDERS, [senders]))
    if len(lines) < senders:
        rows(GIVE_SENDERS_LINES, [senders])
        lines = dict(rows(SENDERS, [senders]))  # also those that somebody else has made meanwhile
    return lines


ASTRAY: Final = {
    MessageOutcome.UNROUTED: "message.unrouted",
    MessageOutcome.DISCARDED: "message.discarded",
    MessageOutcome.DEAD_LETTERED: "message.dead_lettered",
}
"""What is logged of a message that nobody gets (contract 11.2)."""


class Route(NamedTuple):
    """Where one message goes."""

    matches: Sequence[Match]
    outcome: MessageOutcome


class Directed(Addressed, Protocol):
    """What decides who gets a message, where it says so itself."""

    @property
    def destination(self) -> str | None:
        """The subscriber's name."""


def routes_of(messages: Sequence[Directed], *, lock: bool = True) -> list[Route]:
    """Return where each message goes, in their order; who gets something is locked against deletion, if wanted."""
    for_one = {place: one for place, one in enumerate(messages) if one.destination not in (None, EACH_SUBSCRIBER)}
    if not for_one:
        return _by_wishes(messages, lock=lock)
    others = {place: one for place, one in enumerate(messages) if place not in for_one}
    routes = dict(zip(for_one, _by_name([*for_one.values()], lock=lock), strict=True))
    routes |= dict(zip(others, _by_wishes([*others.values()], lock=lock) if others else (), strict=True))
    return [routes[place] for place in range(len(messages))]


def _by_wishes(messages: Sequence[Directed], *, lock: bool) -> list[Route]:
    return [
        _to(_first_of_each(matches) if message.destination else matches, MessageOutcome.UNROUTED)
        for message, matches in zip(messages, matching_subscriptions(messages, lock=lock), strict=True)
    ]


def _by_name(messages: Sequence[Directed], *, lock: bool) -> list[Route]:
    return [
        Route((), MessageOutcome.DEAD_LETTERED) if matches is None else _to(matches, MessageOutcome.DISCARDED)
        for matches in directed(messages, lock=lock)
    ]


def _to(matches: Sequence[Match], otherwise: MessageOutcome) -> Route:
    return Route(matches, MessageOutcome.ROUTED if matches else otherwise)


def _first_of_each(matches: Sequence[Match]) -> list[Match]:
    """Return of each subscriber its first one."""
    firsts: dict[int, Match] = {}
    for match in matches:
        firsts.setdefault(match.subscriber_id, match)
    return [*firsts.values()]


def log_astray(ids: Sequence[int | str], messages: Sequence[Directed], routes: Sequence[Route]) -> None:
    """Log the messages that nobody gets."""
    for message_id, message, route in zip(ids, messages, routes, strict=True):
        if event := ASTRAY.get(route.outcome):
            log.info(event, message_id=message_id, event_type=message.event_type, destination=message.destination)


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
