"""What the sink got, and whether it is what was published: everything once, each stream in order, nothing missing."""

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

Key = tuple[int, int]
"""A subscriber, and the stream that a request of it came from."""

NANOSECONDS: Final = 1e9


def _instants() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Receipts:
    """Every request that was noted since the last report, and what has been wrong since the beginning."""

    at: "array[int]" = field(default_factory=_instants)
    sent: "array[int]" = field(default_factory=_instants)
    subscriber: "array[int]" = field(default_factory=_instants)
    last: dict[Key, int] = field(default_factory=dict)
    """The highest number of each stream."""
    faults: Counter[str] = field(default_factory=Counter)
    example: bytes = b""
    """One request as it came."""

    def seconds(self, *, but: range = range(0)) -> list[float]:
        """Return how long each took from the publisher to the sink, sorted, but for some of the subscribers."""
        rows = zip(self.at, self.sent, self.subscriber, strict=True)
        return sorted((at - sent) / NANOSECONDS for at, sent, subscriber in rows if subscriber not in but)


def problems(receipts: Receipts, wanted: Mapping[Key, int]) -> Iterator[str]:
    """Say what was lost, repeated or out of order."""
    yield from (f"{count} requests {fault}" for fault, count in sorted(receipts.faults.items()))
    lost = sum(max(0, count - receipts.last.get(key, 0)) for key, count in wanted.items())
    if lost:
        yield f"{lost} deliveries never arrived"
    unknown = receipts.last.keys() - wanted.keys()
    if unknown:
        yield f"requests of {len(unknown)} streams that nobody had published"
