"""`topic.fanout`: one message for a thousand subscribers, from the call to the last receipt."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import RunningSink, running_sink
from benchmarks.connection import Connection
from benchmarks.figures import Figure, Outcome, at_most
from benchmarks.publisher import ACCEPTED
from benchmarks.receipts import Receipts, problems
from benchmarks.throughput import void
from benchmarks.wire import body_of

NAME: Final = "topic.fanout"
TARGET: Final = at_most(0.6)
STREAM: Final = 0


@dataclass(frozen=True, slots=True)
class Round:
    """What became of one message."""

    unfinished: Sequence[str]
    receipts: Receipts

    def seconds(self) -> float:
        """Return the time to the last receipt."""
        return max(self.receipts.seconds(), default=math.inf)


def run(bench: Bench, *, subscribers: int = 1_000, times: int = 10) -> Outcome:
    """Publish one message after the other, each when the one before has arrived everywhere; the first warms up."""
    with running_sink() as sink:
        (event_type,) = arranging.event_types(bench.api, 1)
        arranging.subscribe(bench.api, sink, [event_type] * subscribers)
        publisher = Connection(bench.stack.web, arranging.publisher_key(bench.api))
        rounds = [_round(bench, sink, publisher, event_type, number + 1, subscribers) for number in range(times + 1)]
        publisher.close()
        bare = sink.bare_rate(rounds[-1].receipts.example, bench.options.bare_seconds)
    seconds = sorted(one.seconds() for one in rounds[1:])
    wanted = {(subscriber, STREAM): times + 1 for subscriber in range(subscribers)}
    wrong = [text for one in rounds for text in one.unfinished] + [*problems(rounds[-1].receipts, wanted)]
    return Outcome(list(_figures(seconds, subscribers / bare)), wrong, void(subscribers / seconds[0], bare))


def _round(
    bench: Bench, sink: RunningSink, publisher: Connection, event_type: str, number: int, subscribers: int
) -> Round:
    """Publish one message; return once nothing of it is open."""
    body = body_of(STREAM, number, time.monotonic_ns())
    publisher.post(f"/api/v1/events/{event_type}".encode(), body, expected=ACCEPTED)
    return Round(bench.unfinished(sink, number * subscribers), sink.report())


def _figures(seconds: Sequence[float], bare: float) -> Iterator[Figure]:
    yield Figure(NAME, "to the last, median", seconds[len(seconds) // 2], "s", bare, TARGET)
    yield Figure(NAME, "to the last, worst", seconds[-1], "s", bare, TARGET)
