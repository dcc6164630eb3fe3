"""What the sink got, and whether it is what was published: everything once, each stream in order, nothing missing."""

import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.connection import NUMBER, SENT, STREAM

Key = tuple[int, int]
"""A subscriber, and the stream that a request of it came from."""

ANYBODY: Final = -1
"""In the place of the subscriber, where any of them may get what is published."""
NANOSECONDS: Final = 1e9
SEQUENCE: Final = b"Webhook-Sequence: "
FLAG: Final = b"Webhook-Possible-Duplicate: true"


def _instants() -> "array[int]":
    return array("q")


@dataclass(slots=True)
class Receipts:
    """Every request that was noted since the last report, and what has been wrong since the beginning."""

    at: "array[int]" = field(default_factory=_instants)
    sent: "array[int]" = field(default_factory=_instants)
    subscriber: "array[int]" = field(default_factory=_instants)
    failed_at: "array[int]" = field(default_factory=_instants)
    """When a request came that was answered 500."""
    last: dict[Key, int] = field(default_factory=dict)
    """How far each stream has come: the highest number of a line, how many different ones of jobs."""
    highest: dict[Key, int] = field(default_factory=dict)
    """The highest number of each stream of jobs: more than `last` says while one before it is missing."""
    faults: Counter[str] = field(default_factory=Counter)
    example: bytes = b""
    """One request as it came."""

    def failed_between(self, begin: float, end: float) -> int:
        """Return how many requests were answered 500 between these two moments."""
        return sum(begin <= at / NANOSECONDS < end for at in self.failed_at)

    def seconds(self, *, but: range = range(0)) -> list[float]:
        """Return how long each took from the publisher to the sink, sorted, but for some of the subscribers."""
        rows = zip(self.at, self.sent, self.subscriber, strict=True)
        return sorted((at - sent) / NANOSECONDS for at, sent, subscriber in rows if subscriber not in but)


class Log:
    """What came, and whether it was its turn.

    Subscribers below `hanging` are left without an answer: to those alone a request may come again, and says so.
    """

    def __init__(self, hanging: int = 0, numbers_used: int = 0) -> None:
        self._hanging = hanging
        self._numbers_used = numbers_used
        """How many of each line's numbers went to what is not noted, before anything is."""
        self.count = 0
        self.example = b""
        """The last request as it came."""
        self._receipts = Receipts()
        self._sequences: dict[int, int] = {}

    def note(self, subscriber: int, head: bytes, body: bytes) -> None:
        """Note a request."""
        receipts, key, number = self._receipts, (subscriber, int(body[STREAM])), int(body[NUMBER])
        sequence = int(head.partition(SEQUENCE)[2].partition(b"\r")[0])
        if (
            number != receipts.last.get(key, 0) + 1
            or sequence != self._sequences.get(subscriber, self._numbers_used) + 1
        ):
            self._note_odd(head, key, number)
            if number <= receipts.last.get(key, 0):
                return
        receipts.last[key] = number
        self._sequences[subscriber] = sequence
        self._keep(subscriber, body)

    def note_failed(self) -> None:
        """Note a request that is answered 500: when it came, and nothing else."""
        self._receipts.failed_at.append(time.monotonic_ns())

    def report(self) -> Receipts:
        """Return what came since the last report."""
        reported = self._receipts
        reported.example = self.example
        self._receipts = Receipts(last=reported.last, highest=reported.highest, faults=reported.faults)
        return reported

    def _keep(self, subscriber: int, body: bytes) -> None:
        self._receipts.at.append(time.monotonic_ns())
        self._receipts.sent.append(int(body[SENT]))
        self._receipts.subscriber.append(subscriber)
        self.count += 1

    def _note_odd(self, head: bytes, key: tuple[int, int], number: int) -> None:
        last = self._receipts.last.get(key, 0)
        if number == last and FLAG in head and key[0] < self._hanging:
            return  # nobody knows whether it was taken
        self._receipts.faults["came again, or too late" if number <= last else "came too early"] += 1


class JobLog(Log):
    """What came of a QUEUE: every job once, whichever endpoint it goes to, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: defaultdict[int, set[int]] = defaultdict(set)

    def note(self, subscriber: int, head: bytes, body: bytes) -> None:  # noqa: ARG002 - jobs have no sequence
        """Note a request."""
        stream, number = int(body[STREAM]), int(body[NUMBER])
        highest = self._receipts.highest
        highest[ANYBODY, stream] = max(number, highest.get((ANYBODY, stream), 0))
        if number in self._seen[stream]:
            self._receipts.faults["came again"] += 1
            return
        self._seen[stream].add(number)
        self._receipts.last[ANYBODY, stream] = len(self._seen[stream])
        self._keep(subscriber, body)


def problems(receipts: Receipts, wanted: Mapping[Key, int]) -> Iterator[str]:
    """Say what was lost, repeated or out of order."""
    yield from (f"{count} requests {fault}" for fault, count in sorted(receipts.faults.items()))
    lost = sum(max(0, count - receipts.last.get(key, 0)) for key, count in wanted.items())
    if lost:
        yield f"{lost} deliveries never arrived"
    unknown = receipts.last.keys() - wanted.keys()
    if unknown:
        yield f"requests of {len(unknown)} streams that nobody had published"
