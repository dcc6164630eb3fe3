"""Find the subscriptions that a message qualifies for by index (contract 2.2, 3, 3.7).

Subscriptions of an event type are indexed by a term of their filter: a path, and the constant that it must equal. A
process learns by which paths an event type's filters are indexed, and then reads only the terms that the message has.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from threading import Lock
from typing import Final, NamedTuple

from broker_project.core.db import rows
from subscriptions.filters import Document, FilterFailed, FilterSyntaxError, cached_filter
from subscriptions.lookup_keys import Addressed, Key, KeyRange, Lookup, lookup_of, path_of

MAX_PATHS: Final = 32
"""Paths of an event type that are looked up; filters with further ones are evaluated for each message."""
PATIENCE: Final = 64
"""Look-ups that met unknown paths, until one of these replaces the path that was met least recently."""
MAX_PLAIN: Final = 1_000
"""Candidates of a look-up that are chosen while they are stored: for more, a statement of its own costs little."""

_known: dict[Key, tuple[str, ...]] = {}
"""The paths that this process has learned. The terms between known paths are all read, so an unknown or unused path
costs time and changes no result."""
_learned: dict[Key, "LearnedPaths"] = {}


class LearnedPaths:
    """The paths that are looked up for one key, and when each was met last."""

    def __init__(self) -> None:
        self._paths: tuple[str, ...] = ()
        self._met: dict[str, int] = {}
        """By path, the number of the look-up that met it last; only those that met unknown paths are counted."""
        self._crowded = 0
        self._lock = Lock()

    def meet(self, counts: Mapping[str, int]) -> tuple[str, ...]:
        """Note the paths that a look-up has met, with their numbers; return those to look up, sorted."""
        with self._lock:
            others = {path: count for path, count in counts.items() if path not in self._met}
            self._crowded += bool(others)
            self._met.update(dict.fromkeys(counts.keys() & self._met.keys(), self._crowded))
            room = MAX_PATHS - len(self._met)
            if others and not room and self._crowded % PATIENCE == 0:
                del self._met[min(self._met, key=lambda path: (self._met[path], path))]
                room = 1
            chosen = sorted(others, key=lambda path: (-others[path], path))[:room]
            self._met.update(dict.fromkeys(chosen, self._crowded))
            if chosen:
                self._paths = tuple(sorted(self._met))
            return self._paths


NO_DELETION: Final = "NOT EXISTS (SELECT FROM subscriptions_subscription WHERE false FOR KEY SHARE)"
"""A condition that is always true, and locks the table of subscriptions against deletions (contract 1.8).

Its lock (ROW SHARE) is taken before the statement looks at the data and held until the transaction ends. Deleting a
subscription takes an EXCLUSIVE lock, so each waits for the other, while publishers do not wait for each other and write
nothing to the subscriptions' rows. Every statement that chooses the subscriptions of new deliveries has it.
"""
KEY_PATH: Final = "CASE WHEN keyless_until IS NOT NULL THEN ordering_key END AS key_path"
"""Where a subscriber's ordering key is: empty if it names no path any more, null if it never has."""
REACHED: Final = f"""
 CROSS JOIN LATERAL (
   SELECT id, subscriber_id, position, filter, filter_term, delivery_mode FROM subscriptions_subscription
    WHERE COALESCE(event_type_id, 0) = k.event_type_id AND event_pattern = k.event_pattern
      AND md5(header_filter_string) = md5(k.filter_string) AND header_filter_string = k.filter_string
      AND filter_term >= k.low AND filter_term < k.high AND status = 'ACTIVE'
   OFFSET 0) s
 CROSS JOIN LATERAL (
   SELECT {KEY_PATH} FROM subscriptions_subscriber WHERE id = s.subscriber_id AND status = 'ACTIVE' LIMIT 1) u
 WHERE {NO_DELETION}"""
"""Joins ranges `k` of the index with the subscriptions `s` in them and their subscribers `u`, both active.

LATERAL with OFFSET or LIMIT forces one look-up by index for each key and subscriber, however few the planner expects.
"""
CANDIDATES: Final = f"""
SELECT k.number, s.id, s.subscriber_id, s.filter, s.delivery_mode = 'PULL', u.key_path, s.filter_term
  FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[])
         WITH ORDINALITY AS k (event_type_id, event_pattern, filter_string, low, high, number){REACHED}
 ORDER BY s.subscriber_id, s.position, s.id
"""
"""Queried by every publish, so that a change counts from the next one on."""


class Match(NamedTuple):
    """A subscription that gets a message if its filter, if there is one, is true or fails (contract 3.6)."""

    place: int
    """Sorts the matches of a message by subscriber, position and id."""
    subscription_id: int
    subscriber_id: int
    filter: str = ""
    is_pulled: bool = False
    """Whether its messages are polled from a mailbox (contract 9.1), so that no line is notified."""
    key_path: str | None = None
    """Where the subscriber's ordering key is; empty: it names no path any more; None: it never has."""
    failure: str = ""
    """Why its filter could not be evaluated."""


def candidates_of(messages: Sequence[Addressed]) -> tuple[list[Lookup], dict[Lookup, list[Match]]]:
    """Return each message's look-up, and the candidates of each by subscriber, position and id."""
    while True:
        known = dict(_known)
        lookups = [lookup_of(message, known) for message in messages]
        distinct = dict.fromkeys(lookups)
        ranges = [*dict.fromkeys(range_ for lookup in distinct for range_ in lookup.ranges)]
        found, met = _look_up(ranges)
        paths = {key: _learned.setdefault(key, LearnedPaths()).meet(counts) for key, counts in met.items()}
        # Compared, since of two threads that learn at once the slower one can overwrite what the other has stored.
        learned = {key: of_key for key, of_key in paths.items() if of_key != known.get(key)}
        _known.update(learned)
        if not learned:
            merged = {lookup: [found[range_] for range_ in lookup.ranges if range_ in found] for lookup in distinct}
            ordered = {
                lookup: lists[0] if len(lists) == 1 else sorted(itertools.chain.from_iterable(lists))
                for lookup, lists in merged.items()
            }
            for lookup, candidates in ordered.items():
                lookup.was_plain = 0 < len(candidates) <= MAX_PLAIN and not any(
                    one.filter or one.is_pulled or one.key_path is not None for one in candidates
                )
            return lookups, ordered


def plain_lookups(messages: Sequence[Addressed]) -> list[Lookup]:
    """Return each message's look-up; none if one of them has found nothing, or a filter, a mailbox or ordering keys."""
    known = dict(_known)
    lookups = [lookup_of(message, known) for message in messages]
    return lookups if all(lookup.was_plain for lookup in lookups) else []


def _look_up(
    ranges: Sequence[KeyRange],
) -> tuple[Mapping[KeyRange, list[Match]], Mapping[Key, Mapping[str, int]]]:
    """Return the candidates of each range, and how many of their filters are looked up by each path."""
    columns = ["{" + ",".join(column) + "}" for column in zip(*(range_.columns for range_ in ranges), strict=True)]
    found: dict[KeyRange, list[Match]] = defaultdict(list)
    met: dict[Key, Counter[str]] = defaultdict(Counter)
    for place, row in enumerate(rows(CANDIDATES, columns)):
        number, subscription_id, subscriber_id, text, is_pulled, key_path, term = row
        range_ = ranges[number - 1]
        found[range_].append(Match(place, subscription_id, subscriber_id, text, is_pulled, key_path))
        if term:
            met[range_.key][path_of(term)] += 1
    return found, met


def matching_subscriptions(messages: Sequence[Addressed]) -> list[list[Match]]:
    """Return the subscriptions that get each message, in position order within each subscriber; all are active.

    One query looks them up for all messages; none is deleted before the transaction ends. Equal messages that meet no
    filter share one list.
    """
    lookups, candidates = candidates_of(messages)
    filtered = {lookup for lookup, found in candidates.items() if any(candidate.filter for candidate in found)}
    return [
        [*qualified(candidates[lookup], message.document)] if lookup in filtered else candidates[lookup]
        for lookup, message in zip(lookups, messages, strict=True)
    ]


def subscriptions_to_ask(message: Addressed) -> list[Match]:
    """Return the subscriptions that qualify for a SYNC call, the oldest first."""
    (lookup,), candidates = candidates_of([message])
    return sorted(qualified(candidates[lookup], message.document), key=attrgetter("subscription_id"))


def qualified(candidates: Sequence[Match], document: Document) -> Iterator[Match]:
    """Yield, in their order, the candidates whose filters are true or fail; each filter is evaluated at its turn."""
    for candidate in candidates:
        try:
            if not candidate.filter or cached_filter(candidate.filter).matches(document):
                yield candidate
        except (FilterFailed, FilterSyntaxError) as wrong:
            yield candidate._replace(failure=f"filter failed: {wrong}")
