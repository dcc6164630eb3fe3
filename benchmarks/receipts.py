"""What the sink or a consumer received, and whether it is what was published: everything once, each stream in order."""

import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchmarks.connection import NUMBER, SENT, STREAM

Key = tuple[int, int]
"""A subscriber and a stream of the publishers."""

ANY: Final = -1
"""Instead of the subscriber, where any of them may receive a message."""
NANOSECONDS: Final = 1e9
SEQUENCE: Final = b"Webhook-Sequence: "
ORDERING_KEY: Final = b"Webhook-Ordering-Key: "
FLAG: Final = b"Webhook-Possible-Duplicate: true"
INSTANTS: Final = partial(array, "q")
"""Makes an array of nanoseconds."""


@dataclass(slots=True)
class Receipts:
    """The requests since the last report, and the faults since the start."""

    at: "array[int]" = field(default_factory=INSTANTS)
    sent: "array[int]" = field(default_factory=INSTANTS)
    subscriber: "array[int]" = field(default_factory=INSTANTS)
    failed_at: "array[int]" = field(default_factory=INSTANTS)
    """Times of the requests that were answered 500."""
    last: dict[Key, int] = field(default_factory=dict)
    """How far each stream has come: the highest number of a line, the number of different jobs."""
    highest: dict[Key, int] = field(default_factory=dict)
    """The highest number of each stream of jobs: more than `last` while an earlier one is missing."""
    faults: Counter[str] = field(default_factory=Counter)
    example: bytes = b""
    """One request."""

    def failed_between(self, begin: float, end: float) -> int:
        """Return how many requests were answered 500 between these two moments."""
        return sum(begin <= at / NANOSECONDS < end for at in self.failed_at)

    def seconds(self, *, without: range = range(0)) -> list[float]:
        """Return the times from the publisher to the sink, without some of the subscribers."""
        rows = zip(self.at, self.sent, self.subscriber, strict=True)
        return [(at - sent) / NANOSECONDS for at, sent, subscriber in rows if subscriber not in without]

    def problems(self, wanted: Mapping[Key, int]) -> Iterator[str]:
        """Yield what was lost, repeated or out of order."""
        yield from (f"{count} requests {fault}" for fault, count in sorted(self.faults.items()) if count)
        if lost := sum(max(0, count - self.last.get(key, 0)) for key, count in wanted.items()):
            yield f"{lost} deliveries never arrived"
        if unknown := self.last.keys() - wanted.keys():
            yield f"requests of {len(unknown)} streams that were not published"


class Log:
    """Records requests to lines and checks their order.

    Subscribers below `hanging` get no answer: only their requests may be repeated, with a flag.
    """

    def __init__(self, hanging: int = 0, numbers_used: int = 0) -> None:
        self.receipts = Receipts()
        self.count = 0
        self.example = b""
        """The last request."""
        self._hanging = hanging
        self._numbers_used = numbers_used
        """How many numbers of each line were used before, by requests that are not recorded."""
        self._sequences: dict[int, int] = {}

    def record(self, subscriber: int, head: bytes, body: bytes) -> None:
        """Record a request."""
        receipts, key, number = self.receipts, (subscriber, int(body[STREAM])), int(body[NUMBER])
        sequence = int(head.partition(SEQUENCE)[2].partition(b"\r")[0])
        if (
            number != receipts.last.get(key, 0) + 1
            or sequence != self._sequences.get(subscriber, self._numbers_used) + 1
        ):
            last = receipts.last.get(key, 0)
            # With the flag, because the broker cannot know whether the endpoint took the first request.
            if not (number == last and FLAG in head and subscriber < self._hanging):
                receipts.faults["came again, or too late" if number <= last else "came too early"] += 1
            if number <= last:
                return
        receipts.last[key] = number
        self._sequences[subscriber] = sequence
        self._keep(subscriber, body)

    def report(self) -> Receipts:
        """Return the receipts since the last report."""
        reported = self.receipts
        reported.example = self.example
        self.receipts = Receipts(last=reported.last, highest=reported.highest, faults=reported.faults)
        return reported

    def _keep(self, subscriber: int, body: bytes) -> None:
        self.receipts.at.append(time.monotonic_ns())
        self.receipts.sent.append(int(body[SENT]))
        self.receipts.subscriber.append(subscriber)
        self.count += 1


def key_in(head: bytes) -> bytes:
    """Return the ordering key that the head of a request tells."""
    return head.partition(ORDERING_KEY)[2].partition(b"\r")[0]


class JobLog(Log):
    """Records jobs: each once, to any endpoint, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: defaultdict[int, set[int]] = defaultdict(set)

    def record(self, subscriber: int, head: bytes, body: bytes) -> None:  # noqa: ARG002 - jobs have no sequence
        """Record a request."""
        stream, number = int(body[STREAM]), int(body[NUMBER])
        highest = self.receipts.highest
        highest[ANY, stream] = max(number, highest.get((ANY, stream), 0))
        if number in self._seen[stream]:
            self.receipts.faults["came again"] += 1
            return
        self._seen[stream].add(number)
        self.receipts.last[ANY, stream] = len(self._seen[stream])
        self._keep(subscriber, body)


class KeyLog(JobLog):
    """Records requests to one keyed line: each once, those of a stream and key in order, and with rising numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[tuple[bytes, int], int] = {}
        self._sequences_of: dict[bytes, int] = {}

    def record(self, subscriber: int, head: bytes, body: bytes) -> None:
        """Record a request."""
        key, number = key_in(head), int(body[NUMBER])
        of_stream, sequence = (key, int(body[STREAM])), int(head.partition(SEQUENCE)[2].partition(b"\r")[0])
        is_late = number <= self._numbers.get(of_stream, 0) or sequence <= self._sequences_of.get(key, 0)
        self.receipts.faults["came after a later one of their key"] += is_late
        self._numbers[of_stream], self._sequences_of[key] = number, sequence
        super().record(subscriber, head, body)
