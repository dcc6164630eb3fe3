"""Which subscriptions a message qualifies for (behaviour 2.2, 3)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from subscriptions.candidates import Candidate, candidates_of
from subscriptions.filters import Document, Filter, FilterFailed, FilterSyntaxError, parse_filter
from subscriptions.probes import Addressed


class Match(NamedTuple):
    """A subscription that qualifies, or whose filter failed, so that nobody knows (behaviour 3.6)."""

    subscription_id: int
    subscriber_id: int
    failure: str = ""
    """Why its filter could not be evaluated."""


def matching_subscriptions(messages: Sequence[Addressed]) -> list[list[Match]]:
    """Return the subscriptions that get each message, in position order within each subscriber.

    Both they and their subscribers are active. Looked up in one query for all messages; those that are alike and meet
    no filter share one list.
    """
    asked, candidates = candidates_of(messages)
    unfiltered = {
        one: [Match(candidate.subscription_id, candidate.subscriber_id) for candidate in found]
        for one, found in candidates.items()
        if not any(candidate.filter for candidate in found)
    }
    return [
        unfiltered[one] if one in unfiltered else [*_matches(candidates[one], message.document)]
        for one, message in zip(asked, messages, strict=True)
    ]


def _matches(candidates: Sequence[Candidate], document: Document) -> Iterator[Match]:
    for candidate in candidates:
        match = Match(candidate.subscription_id, candidate.subscriber_id)
        try:
            if not candidate.filter or parse_filter(candidate.filter).matches(document):
                yield match
        except FilterFailed as failure:
            if not _is_excluded(parse_filter(candidate.filter), document):
                yield match._replace(failure=f"filter failed: {failure}")
        except FilterSyntaxError as wrong:
            yield match._replace(failure=f"filter failed: {wrong}")


def _is_excluded(one: Filter, document: Document) -> bool:
    """Tell whether a filter that failed cannot be true all the same: so says the index, where it is asked."""
    if one.equality is None:
        return False
    path, constant = one.equality
    try:
        return document.text_at(path) != constant
    except FilterFailed:
        return False
