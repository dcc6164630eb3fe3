"""Which subscriptions a message qualifies for (behaviour 2.2, 3)."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

from subscriptions.candidates import Candidate, candidates_of, locked
from subscriptions.filters import Document, FilterFailed, FilterSyntaxError, Work, kept_filter
from subscriptions.lookup_keys import Addressed


class Match(NamedTuple):
    """A subscription that qualifies, or whose filter failed, so that nobody knows (behaviour 3.6)."""

    subscription_id: int
    subscriber_id: int
    failure: str = ""
    """Why its filter could not be evaluated."""
    filter: str = ""
    """Its filter's text."""
    by_header: bool = False
    """Whether it has a header filter, which is then the message's FILTER_STRING."""
    is_pulled: bool = False
    """Whether it is fetched from a mailbox (behaviour 9.1)."""

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
