"""What a job of the broker's own has made again, by the requests that endpoints got."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.faults.exchanges import Exchange, extra_copies, first_sent


@dataclass(frozen=True, slots=True)
class Again:
    """How the second time of one line compares with the first."""

    missing: int
    """Events of the first time that did not come a second time."""
    doubled: int
    """Events that were made again under more than one webhook id."""
    inverted: int
    """Events that came the second time before one that was before them the first time."""
    copies: int
    """Requests that repeat one of the same webhook id which may have been taken."""
    unflagged: int
    """Of those, the ones that do not say so."""


def compared(first: Sequence[Exchange], second: Sequence[Exchange]) -> Again:
    """Judge the requests of a replay by those that it repeats."""
    before = {one.number: place for place, one in enumerate(first_sent(first))}
    ids: Mapping[int, set[str]] = {number: set() for number in before}
    for one in second:
        ids[one.number].add(one.webhook_id)
    places = [before[one.number] for one in first_sent(second)]
    copies = [copy.request for copy in extra_copies(second)]
    return Again(
        missing=sum(not found for found in ids.values()),
        doubled=sum(len(found) > 1 for found in ids.values()),
        inverted=sum(after < earlier for earlier, after in pairwise(places)),
        copies=len(copies),
        unflagged=sum(not one.flagged for one in copies),
    )


def total(lines: Sequence[Again]) -> dict[str, int]:
    """Return what has to be none, over all lines, where it is not."""
    found: Counter[str] = Counter()
    for line in lines:
        found.update(missing=line.missing, doubled=line.doubled, inverted=line.inverted, unflagged=line.unflagged)
    return {name: count for name, count in found.items() if count}
