"""`horizon`: deliveries while somebody's snapshot is held, a long query's or a backup's.

PostgreSQL then keeps every row and index entry of what has ended since.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

import psycopg

from benchmarks.bench import Bench
from benchmarks.figures import Figure, Outcome, at_least, at_most, merged, percentiles, ratio
from benchmarks.measure import DELIVERED, Load, publishing, publishing_problems, watched
from benchmarks.publisher import Pace, Published
from benchmarks.receipts import Log
from benchmarks.sink import RunningSink, running_sink
from broker_project.stack.postgres import binary
from delivery.limits import RENEWAL_SECONDS

RATES: Final = (800.0, 2_000.0)
PER_CALL: Final = 100
"""Messages in a call, as in `topic.dense`: 2,000 single ones a second would leave two cores nothing to spare."""
CONNECTIONS: Final = 8
HALF_AN_HOUR: Final = 1_800.0
WARM_SECONDS: Final = 10.0
"""How long the broker has at that rate until it is measured: under a snapshot, floors begin within three notes."""
LOOK_SECONDS: Final = 1.0
CPU: Final = ("CPU of workers", "CPU of postgres")
SLICE: Final = 100_000
"""Deliveries that die in one transaction."""
OF_BENCH: Final = """
  FROM subscriptions_subscription s JOIN delivery_line l ON l.subscriber_id = s.subscriber_id AND l.lane = 'main'
 CROSS JOIN generate_series(1, {number}) n
 WHERE s.subscriber_id IN (SELECT id FROM subscriptions_subscriber WHERE name LIKE '{subscribers}')"""
LEFT: Final = f"""
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, reason)
SELECT (SELECT max(id) FROM delivery_message), l.id, s.id, 'PENDING', 1000, 'horizon' {OF_BENCH} ORDER BY n, s.id;
UPDATE delivery_open SET status = 'IN_FLIGHT', sequence = 1
 WHERE reason = 'horizon' AND id > (SELECT last_value - {SLICE} FROM delivery_delivery_id_seq);
DELETE FROM delivery_open
 WHERE reason = 'horizon' AND id > (SELECT last_value - {SLICE} FROM delivery_delivery_id_seq);
INSERT INTO delivery_pageread (line_id, epoch, delivery_ids) SELECT l.id, -{{slice}}, ARRAY[n] {OF_BENCH};
DELETE FROM delivery_pageread p USING delivery_line l WHERE p.line_id = l.id AND p.epoch = -{{slice}}"""
"""What publishing, a page for each delivery, marks and settles leave; in one transaction, so no worker sees it."""
RENEWED: Final = """
UPDATE delivery_line SET lease_until = now() WHERE lane = 'main' AND lease_until IS NULL;
UPDATE delivery_line SET lease_until = NULL WHERE lane = 'main' AND lease_until = now()"""
"""What renewing all leases twice leaves, in one transaction too."""
SAMPLED: Final = "SELECT pg_stat_get_dead_tuples('delivery_open'::regclass)"


def run(
    bench: Bench, *, subscribers: int = 100, rates: tuple[float, ...] = RATES, seconds: float = HALF_AN_HOUR
) -> Outcome:
    """Publish 800 and 2,000 messages a second, in batches: clean, under a snapshot of half an hour, during a backup.

    Under the snapshot statements first leave the dead rows of half an hour. With --minutes deliveries at the rate leave
    them instead, for that long; --rate is the only rate.
    """
    chosen = (bench.options.rate,) if bench.options.rate else rates
    outcomes = {f", {rate:,.0f}/s": _Run(bench, subscribers, rate, seconds).outcome() for rate in chosen}
    return merged(outcomes)


class _Run:
    """The phases of one rate, for the same subscribers."""

    def __init__(self, bench: Bench, subscribers: int, rate: float, seconds: float) -> None:
        self._bench = bench
        self._steady = Pace(PER_CALL, per_second=rate, connections=CONNECTIONS)
        self._load = Load(subscribers, self._steady)
        self._deliveries, self._renewals = int(rate * seconds), int(seconds / RENEWAL_SECONDS)
        self._streams = count(step=CONNECTIONS)
        self._published: list[Published] = []

    def outcome(self) -> Outcome:
        """Measure clean, then under a snapshot, then during a backup."""
        with running_sink(log=Log()) as sink:
            event_types, subscribers = self._load.subscribe(self._bench, sink)
            measure = partial(self._measured, sink, event_types)
            self._execute("VACUUM")  # what an earlier rate left
            found = {"clean": measure()}
            with self._snapshot_held():
                self._let_rows_die(sink, event_types, subscribers)
                found["held"] = measure()
                ((dead,),) = self._bench.ask(SAMPLED)
            with self._dumped():
                found["dumped"] = measure()
            expected = self._load.expected(self._published)
            problems = self._bench.unfinished(sink, sum(expected.values()))
            problems += [*publishing_problems(self._published), *sink.report().problems(expected)]
        return Outcome([*self._figures(found), Figure("dead rows", float(str(dead)), "")], problems)

    def _figures(self, found: Mapping[str, Outcome]) -> Iterator[Figure]:
        rate, p95 = DELIVERED, f"{DELIVERED} p95"
        yield from (replace(one, name=f"{one.name}, {what}") for what, some in found.items() for one in some.figures)
        clean, held = found["clean"], found["held"]
        yield Figure("rate, held / clean", ratio(held.value(rate), clean.value(rate)), "times", target=at_least(0.95))
        yield Figure("p95, held / clean", ratio(held.value(p95), clean.value(p95)), "times", target=at_most(1.5))

    def _measured(self, sink: RunningSink, event_types: list[str]) -> Outcome:
        bench = replace(self._bench, options=replace(self._bench.options, warm_seconds=WARM_SECONDS))
        during = watched(bench, event_types, self._next(self._steady), sink)
        self._wait_for(sink, during.published)
        seconds = sink.report().seconds()
        cpu = [figure for figure in during.costs() if figure.name in CPU]
        return Outcome([Figure(DELIVERED, during.rate, "/s"), *percentiles(DELIVERED, seconds), *cpu])

    def _let_rows_die(self, sink: RunningSink, event_types: list[str], subscribers: list[str]) -> None:
        """Leave the dead rows of half an hour, or of deliveries for the time that was asked for."""
        if not self._bench.options.minutes:
            self._leave_dead_rows(of=f"{subscribers[0].partition('.')[0]}.%")
            return
        until = time.monotonic() + self._bench.options.minutes * 60
        with publishing(self._bench, event_types, self._next(self._steady), sink) as publisher:
            while time.monotonic() < until:
                time.sleep(LOOK_SECONDS)
                sink.report()  # so that it does not keep them all
            published = publisher.stop()
        self._wait_for(sink, published)

    def _leave_dead_rows(self, *, of: str) -> None:
        each = SLICE // self._load.subscribers
        numbers = range(1, self._deliveries // SLICE + 2)
        slices = (LEFT.format(number=each, slice=number, subscribers=of) for number in numbers)
        self._execute("SET enable_seqscan = off", *slices, *[RENEWED] * (self._renewals // 2))

    def _execute(self, *statements: str) -> None:
        with psycopg.connect(self._bench.stack.environment["DATABASE_URL"], autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def _wait_for(self, sink: RunningSink, published: Sequence[Published]) -> None:
        self._published += published
        self._bench.unfinished(sink, sum(self._load.expected(self._published).values()))

    def _next(self, pace: Pace) -> Pace:
        return replace(pace, first_stream=next(self._streams))

    @contextmanager
    def _snapshot_held(self) -> Iterator[None]:
        with psycopg.connect(self._bench.stack.environment["DATABASE_URL"]) as held:
            held.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            held.execute("SELECT 1")
            yield

    @contextmanager
    def _dumped(self) -> Iterator[None]:
        """Back up all the time; what a backup costs beside its snapshot counts too."""
        url = self._bench.stack.environment["DATABASE_URL"]
        script = (
            f"while {binary('pg_dump')} --format=custom --compress=0 --no-sync --file=/dev/null '{url}'; do :; done"
        )
        dumping = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)  # noqa: S603 - of ours
        try:
            yield
        finally:
            os.killpg(dumping.pid, signal.SIGTERM)  # the backup too, which would go on without its shell
            dumping.wait()
