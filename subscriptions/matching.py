"""Which subscriptions a message qualifies for, found by index (contract 2.2, 3, 3.7)."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final, LiteralString, NamedTuple, Self

from broker_project.core.db import rows
from subscriptions.filters import Document, FilterFailed, FilterSyntaxError, Work, kept_filter
from subscriptions.lookup_keys import Addressed, Asked, Key, Probe, lookup_keys_of, path_of

MAX_PATHS: Final = 32
"""So many paths are looked up; where an event type's filters compare more of them, the rest is evaluated."""
PATIENCE: Final = 64
"""Once in so many look-ups that met other paths one of them takes the place of the one that was met least lately."""

LOCK: Final = "SELECT id FROM subscriptions_subscription WHERE id = ANY(%s::bigint[]) FOR KEY SHARE"
"""Locks, of candidates with filters among them, those that match: a lock is written to the row."""


_filtered: set[Key] = set()
"""Where candidates with filters were found last: as of `_known`, an error costs time only."""
_known: dict[Key, tuple[str, ...]] = {}
"""What this process has learned. What lies between known paths is read whole: not knowing one, or knowing one that
nobody uses any more, costs time and changes no answer."""


class LearnedPaths:
    """Paths and when each was met last, counted in look-ups that met others beside them."""

    def __init__(self) -> None:
        self.paths: tuple[str, ...] = ()
        """Sorted."""
        self._met: dict[str, int] = {}
        self._crowded = 0
        self._lock = Lock()

    def meet(self, counts: Mapping[str, int]) -> bool:
        """Take note of the paths that a look-up met, each so many times; tell whether there are new ones to look up."""
        with self._lock:
            return self._note(counts)

    def _note(self, counts: Mapping[str, int]) -> bool:
        others = {path: count for path, count in counts.items() if path not in self._met}
        self._crowded += bool(others)
        self._met.update(dict.fromkeys(counts.keys() & self._met.keys(), self._crowded))
        room = MAX_PATHS - len(self._met)
        if others and not room and self._crowded % PATIENCE == 0:
            del self._met[min(self._met, key=lambda path: (self._met[path], path))]
            room = 1
        chosen = sorted(others, key=lambda path: (-others[path], path))[:room]
        self._met.update(dict.fromkeys(chosen, self._crowded))
        self.paths = tuple(sorted(self._met))
        return bool(chosen)


CANDIDATES: Final = """
SELECT k.number, s.id, s.subscriber_id, s.filter, s.delivery_mode = 'PULL', s.filter_term
  FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[])
         WITH ORDINALITY AS k (event_type_id, event_pattern, filter_string, low, high, number)
  JOIN subscriptions_subscription s
    ON COALESCE(s.event_type_id, 0) = k.event_type_id AND s.event_pattern = k.event_pattern
       AND md5(s.header_filter_string) = md5(k.filter_string) AND s.header_filter_string = k.filter_string
       AND s.filter_term >= k.low AND s.filter_term < k.high AND s.status = 'ACTIVE'
  JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
 ORDER BY s.subscriber_id, s.position, s.id
"""
"""Asked anew for every publish: a change counts from the next one on."""
LOCKED: Final = CANDIDATES + "   FOR KEY SHARE OF s\n"
"""The same where no filters are known: who is found gets the message.

Locked against deletion, as the deliveries' foreign key would do anyway: whoever deletes a subscription waits for the
publish and is then refused, instead of making the publish fail.
"""


class Candidate(NamedTuple):
    """A subscription that the message may qualify for: it does if its filter, when there is one, is true."""

    place: int
    """Sorts candidates by subscriber, position and id."""
    subscription_id: int
    subscriber_id: int
    filter: str
    by_header: bool
    """Whether it is found by the message's FILTER_STRING."""
    is_pulled: bool = False
    """Whether it is fetched from a mailbox, so that no line is to be woken."""


class Candidates(NamedTuple):
    """Where to look for each message, and who is there by subscriber, position and id."""

    asked: list[Asked]
    found: dict[Asked, list[Candidate]]
    are_locked: bool
    """Whether nobody can delete them until the transaction ends."""


_learned: dict[Key, LearnedPaths] = {}
"""How it was learned."""


def forget() -> None:
    """Forget what this process has learned."""
    _known.clear()
    _learned.clear()
    _filtered.clear()


def locked(subscription_ids: Collection[int]) -> set[int]:
    """Lock subscriptions against deletion until the transaction ends; return those that are still there."""
    return {found for (found,) in rows(LOCK, [[*subscription_ids]])} if subscription_ids else set()


def candidates_of(messages: Sequence[Addressed], work: Work, *, lock: bool = True) -> Candidates:
    """Return the candidates of one or more messages, locked only if wanted: what is sent at once needs none to stay."""
    while True:
        known = dict(_known)
        asked = [lookup_keys_of(message, known, work) for message in messages]
        distinct = dict.fromkeys(asked)
        keys = {key for one in distinct for key in one.keys}
        are_locked = lock and _filtered.isdisjoint(keys)
        probes = [*dict.fromkeys(probe for one in distinct for probe in one.probes)]
        found, met = _look_up(LOCKED if are_locked else CANDIDATES, probes)
        _filtered.difference_update(keys)
        _filtered.update(probe.key for probe, there in found.items() if any(one.filter for one in there))
        if not _learn(met):
            ordered = {one: _in_order([found[probe] for probe in one.probes if probe in found]) for one in distinct}
            return Candidates(asked, ordered, are_locked)


def _look_up(
    statement: LiteralString, probes: Sequence[Probe]
) -> tuple[Mapping[Probe, list[Candidate]], Mapping[Key, Mapping[str, int]]]:
    """Return the candidates of each range, and how often filters among them are found by each path."""
    columns = ["{" + ",".join(column) + "}" for column in zip(*(probe.columns for probe in probes), strict=True)]
    found: dict[Probe, list[Candidate]] = defaultdict(list)
    met: dict[Key, Counter[str]] = defaultdict(Counter)
    for place, (number, subscription_id, subscriber_id, text, is_pulled, term) in enumerate(rows(statement, columns)):
        probe = probes[number - 1]
        found[probe].append(Candidate(place, subscription_id, subscriber_id, text, probe.by_header, is_pulled))
        if term:
            met[probe.key][path_of(term)] += 1
    return found, met


def _in_order(found: list[list[Candidate]]) -> list[Candidate]:
    """Return what several ranges brought as one list."""
    return found[0] if len(found) == 1 else sorted(itertools.chain.from_iterable(found))


def _learn(met: Mapping[Key, Mapping[str, int]]) -> bool:
    """Tell whether there are now other paths to look up."""
    changed = [key for key, counts in met.items() if _learned.setdefault(key, LearnedPaths()).meet(counts)]
    _known.update({key: _learned[key].paths for key in changed})
    return bool(changed)


class Match(NamedTuple):
    """A subscription that qualifies, or whose filter failed, so that nobody knows (contract 3.6)."""

    subscription_id: int
    subscriber_id: int
    failure: str = ""
    """Why its filter could not be evaluated."""
    filter: str = ""
    """Its filter's text."""
    by_header: bool = False
    """Whether it has a header filter, which is then the message's FILTER_STRING."""
    is_pulled: bool = False
    """Whether it is fetched from a mailbox (contract 9.1)."""

    @classmethod
    def of(cls, candidate: Candidate) -> Self:
        """Return the candidate as one that qualifies."""
        return cls(candidate.subscription_id, candidate.subscriber_id, "", *candidate[3:])


def matching_subscriptions(messages: Sequence[Addressed], *, lock: bool = True) -> list[list[Match]]:
    """Return the subscriptions that get each message, in position order within each subscriber.

    Both they and their subscribers are active. Looked up in one query for all messages, and locked against deletion,
    if wanted: where filters are known to take part by a second one. Messages that are alike and meet no filter share
    one list.
    """
    work = Work()
    asked, candidates, are_locked = candidates_of(messages, work, lock=lock)
    unfiltered = {
        one: [Match.of(candidate) for candidate in found]
        for one, found in candidates.items()
        if not any(candidate.filter for candidate in found)
    }
    matches = [
        unfiltered[one] if one in unfiltered else [*qualified(candidates[one], message.document, work)]
        for one, message in zip(asked, messages, strict=True)
    ]
    return matches if are_locked or not lock else _without_deleted(matches)


def subscriptions_to_ask(message: Addressed) -> list[Match]:
    """Return the subscriptions that qualify for a message that is sent at once and kept for nobody, the oldest first.

    Without a lock: it would be written to the rows and waited for, and it is too late to wait for whoever deletes one.
    """
    work = Work()
    (asked,), candidates, _ = candidates_of([message], work, lock=False)
    return sorted(qualified(candidates[asked], message.document, work))


def _without_deleted(matches: list[list[Match]]) -> list[list[Match]]:
    """Return those whose subscription is still there, and stays until the transaction ends."""
    wanted = {match.subscription_id for found in matches for match in found}
    there = locked(wanted)
    if there == wanted:
        return matches
    return [[match for match in found if match.subscription_id in there] for found in matches]


def qualified(candidates: Sequence[Candidate], document: Document, work: Work) -> Iterator[Match]:
    """Yield in turn those of the candidates whose filters are true, or fail; no filter is evaluated before its turn."""
    document.work = work
    for candidate in candidates:
        match = Match.of(candidate)
        try:
            if not candidate.filter or kept_filter(candidate.filter).matches(document):
                yield match
        except (FilterFailed, FilterSyntaxError) as wrong:
            yield match._replace(failure=f"filter failed: {wrong}")
