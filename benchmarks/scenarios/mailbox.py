"""`mailbox.polling`: how soon those who wait have a message, what they cost publishers, and what the others are told.

Nobody, as many as may wait, and many more, by turns on one stack.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg

from benchmarks import bench as benchmarks_bench
from benchmarks.bench import Bench
from benchmarks.children import RunningConsumers, fetching, publishing
from benchmarks.connection import NUMBER, body_of
from benchmarks.figures import Figure, Outcome, Target, at_least, at_most, percentile
from benchmarks.filling import SLICE, settle_down
from benchmarks.mailbox_client import OK, Errand, Taken
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import ANYBODY, Key, problems
from benchmarks.throughput import awaiting, cpu_figures, publishing_problems, watched
from benchmarks.timing import accepted
from delivery.due_times import UNTIL_RETURNED

PERCENTS: Final = (50, 95, 99)

STREAM: Final = 99
"""No publisher's."""
FRESH: Final = {"status": "PENDING", "due_at": None, "fetches": 0, "fetched_until": None}
TIMED_OUT: Final = {"status": "IN_FLIGHT", "due_at": UNTIL_RETURNED, "fetches": 1, "fetched_until": "now"}
"""Each was handed out once, and its time was over as soon as it was there."""

MILLION: Final = "mailbox.million"
TARGETS: Final = {"fetch p95": at_most(10)}
MILLION_CONNECTIONS: Final = 4
"""Of the publishers."""
STATES: Final[Mapping[str, Mapping[str, object]]] = {"": FRESH, ", timed out": TIMED_OUT}
FILLED: Final = (ANYBODY, STREAM)
IDS: Final = """
    SELECT subscriber.id, subscription.id, event_type_id
    FROM subscriptions_subscription subscription
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscriber_id WHERE subscriber.name = %s
"""

POLLING: Final = "mailbox.polling"
SEATS: Final = 48
"""As many as may wait in the one web process of the stack."""
CLIENTS: Final = 200
POLL_WAIT_SECONDS: Final = 20.0
POLL_CONNECTIONS: Final = 4
ROUNDS: Final = 2
SOON: Final = at_most(100)
DEARER: Final = at_most(1.2)

MAILBOX_THROUGHPUT: Final = "mailbox.throughput"
TARGET: Final = at_least(3_000)
MOST: Final = 10
CONSUMERS: Final = 4
CONNECTIONS: Final = 4
"""Of the publishers."""
WAIT_SECONDS: Final = 0.0
"""Nobody waits, so that what a fetch takes is no waiting."""


def wanted_from(published: Sequence[Published]) -> dict[Key, int]:
    """Return how many messages of each stream are to be fetched, by whichever consumer."""
    return {(ANYBODY, stream.stream): sum(stream.counts) for stream in published}


def faults(taken: Taken) -> list[str]:
    """Say what should not have been answered so."""
    return [f"{count} times {what}" for what, count in sorted(taken.faults.items())]


def calls(
    scenario: str, taken: Taken, targets: Mapping[str, Target] | None = None, *, of: str = ""
) -> Iterator[Figure]:
    """Yield percentiles of how long fetches and acknowledgements took, `of` what if that is to be said."""
    for what, seconds in {"fetch": sorted(taken.fetched), "acknowledge": sorted(taken.acknowledged)}.items():
        for percent in PERCENTS:
            figure, value = f"{what} p{percent}", percentile(seconds, percent) * 1e3
            yield Figure(scenario, figure + of, value, "ms", target=(targets or {}).get(figure))


def purge(bench: Bench, mailbox: str) -> None:
    """Leave nothing in a mailbox."""
    path = f"/api/v1/mailboxes/{mailbox}/purge".encode()
    while not json.loads(bench.api.post(path, b"{}", expected=OK))["complete"]:
        pass


MESSAGES: Final = """
WITH message AS (
  INSERT INTO delivery_message (id, event_type_id, body, size, content_type, headers, outcome, deliveries_count)
  SELECT nextval('delivery_message_id_seq'), %(event_type)s,
         convert_to(overlay(%(body)s PLACING lpad(n::text, %(digits)s, '0') FROM %(place)s), 'UTF8'),
         octet_length(%(body)s), 'application/json', '[]', 'ROUTED', 1
    FROM generate_series(%(first)s::int, %(last)s::int) n
  RETURNING id, size)
INSERT INTO delivery_open (message_id, line_id, subscription_id, size, status, due_at, fetches, fetched_until)
SELECT message.id, line.id, %(subscription)s, message.size, %(status)s, %(due_at)s::timestamptz, %(fetches)s,
       %(fetched_until)s::timestamptz
  FROM message JOIN delivery_line line ON line.lane = 'main' AND line.subscriber_id = %(subscriber)s
 ORDER BY message.id
"""
"""Messages of today, numbered from 1."""


def fill_mailbox(
    url: str,
    subscriber_id: int,
    subscription_id: int,
    event_type_id: int,
    *,
    count: int,
    state: Mapping[str, object] = FRESH,
) -> None:
    """Let `count` messages in this state, with bodies as publishers send them, lie in a subscriber's mailbox."""
    arguments = {
        "subscriber": subscriber_id,
        "subscription": subscription_id,
        "event_type": event_type_id,
        "body": body_of(STREAM, 0, 0).decode(),
        "place": NUMBER.start + 1,
        "digits": NUMBER.stop - NUMBER.start,
        **state,
    }
    with psycopg.connect(url, autocommit=True, options="-c synchronous_commit=off") as connection:
        for first in range(1, count + 1, SLICE):
            bounds = {"first": first, "last": min(first + SLICE - 1, count)}
            connection.execute(MESSAGES.encode(), {**arguments, **bounds})


def run_million(bench: Bench, *, messages: int = 1_000_000, per_second: float = 50) -> Outcome:
    """Fill a mailbox by SQL, fetch from it for a while, and purge it: for each state of the messages."""
    outcomes = [_measured(bench, of, messages, per_second) for of in STATES]
    return Outcome(
        [figure for outcome in outcomes for figure in outcome.figures],
        [problem for outcome in outcomes for problem in outcome.problems],
    )


def _measured(bench: Bench, of: str, messages: int, per_second: float) -> Outcome:
    (event_type,) = benchmarks_bench.event_types(bench.api, 1)
    mailbox, key = benchmarks_bench.mailbox(bench.api, event_type)
    _fill(bench, mailbox, messages, STATES[of])
    publisher_key = benchmarks_bench.publisher_key(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], MILLION_CONNECTIONS, per_call=1, per_second=per_second)
    again = STREAM if STATES[of] is TIMED_OUT else None
    with fetching(Errand(bench.stack.web, key, mailbox, CONSUMERS, MOST, WAIT_SECONDS, again)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, end = watched(bench, consumers, publisher)
            taken, published = consumers.report(), publisher.stop()
        last = consumers.end()
    bench.say("purging it")
    purge(bench, mailbox)
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    speed = Figure(MILLION, f"acknowledged{of}", rate, "/s")
    beside = Figure(MILLION, f"accepted p95{of}", percentile(accepted(published, since=begin.at), 95) * 1e3, "ms")
    used = [replace(figure, figure=figure.figure + of) for figure in cpu_figures(MILLION, begin, end)]
    return Outcome([*calls(MILLION, taken, TARGETS, of=of), speed, beside, *used], [*_problems(last, published)])


def _problems(last: Taken, published: Sequence[Published]) -> Iterator[str]:
    """Say what was wrong: of each stream, all must have come up to the highest that came, for the oldest come first."""
    streams = {FILLED, *wanted_from(published)}
    wanted = {stream: highest for stream, highest in last.receipts.highest.items() if stream in streams}
    yield from (*publishing_problems(published), *faults(last), *problems(last.receipts, wanted))
    if FILLED not in wanted:
        yield "nothing was fetched of what lay there"


def _fill(bench: Bench, mailbox: str, messages: int, state: Mapping[str, object]) -> None:
    bench.say(f"laying {messages:,} messages into a mailbox")
    ((subscriber, subscription, event_type),) = bench.ask(IDS, mailbox)
    url = bench.stack.environment["DATABASE_URL"]
    ids = (int(str(one)) for one in (subscriber, subscription, event_type))
    fill_mailbox(url, *ids, count=messages, state=state)
    settle_down(url)


@dataclass(slots=True)
class Seen:
    """What came of one number of clients, over all rounds; all in seconds."""

    accepted: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    """At each message that came: how many others were waiting, or about to; no seconds."""
    turned_away: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run_polling(bench: Bench, *, per_second: float = 50, seats: int = SEATS, clients: int = CLIENTS) -> Outcome:
    """Publish singly and evenly to a mailbox; every other round goes the other way round."""
    seen: defaultdict[int, Seen] = defaultdict(Seen)
    for number in range(ROUNDS):
        for count in sorted((0, seats, clients), reverse=bool(number % 2)):
            _measure(bench, count, per_second, seen[count])
    wrong = [text for one in seen.values() for text in one.problems]
    if seen[seats].turned_away:
        wrong.append(f"{len(seen[seats].turned_away)} of {seats} clients were turned away")
    if not seen[clients].turned_away:
        wrong.append(f"all of {clients} clients were let wait")
    return Outcome([*_figures(seen, seats, clients)], wrong)


def _measure(bench: Bench, clients: int, per_second: float, seen: Seen) -> None:
    """Publish to a new mailbox for which so many clients ask, a message a call."""
    (event_type,) = benchmarks_bench.event_types(bench.api, 1)
    mailbox, key = benchmarks_bench.mailbox(bench.api, event_type)
    publisher_key = benchmarks_bench.publisher_key(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], POLL_CONNECTIONS, per_call=1, per_second=per_second)
    with fetching(Errand(bench.stack.web, key, mailbox, clients, most=1, wait=POLL_WAIT_SECONDS)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, _ = watched(bench, consumers, publisher)
            published = publisher.stop()
        seen.accepted += accepted(published, since=begin.at)
        seen.problems += publishing_problems(published)
        if clients:
            seen.problems += _gone_through(bench, consumers, published, seen)
        else:
            purge(bench, mailbox)


def _gone_through(bench: Bench, consumers: RunningConsumers, published: Sequence[Published], seen: Seen) -> list[str]:
    """Wait until all is acknowledged; note how soon it came, and return what was wrong."""
    wanted = wanted_from(published)
    unfinished = bench.unfinished(consumers, sum(wanted.values()))
    taken = consumers.report()
    seen.reached += taken.receipts.seconds()
    seen.others += taken.others
    seen.turned_away += taken.turned_away
    return [*unfinished, *faults(taken), *problems(taken.receipts, wanted)]


def _figures(seen: Mapping[int, Seen], seats: int, clients: int) -> Iterator[Figure]:
    alone = _p95(seen[0].accepted)
    yield Figure(POLLING, "accepted p95, nobody waits", alone, "ms")
    for count in (seats, clients):
        one = seen[count]
        yield Figure(POLLING, f"accepted p95, {count} clients", _p95(one.accepted), "ms")
        yield Figure(POLLING, f"reached p95, {count} clients", _p95(one.reached), "ms", target=SOON)
        yield Figure(POLLING, f"others waiting p50, {count} clients", percentile(sorted(one.others), 50), "clients")
    ratio = _p95(seen[seats].accepted) / max(1e-9, alone)
    yield Figure(POLLING, f"accepted p95, {seats} clients : nobody", ratio, "times", target=DEARER)
    yield Figure(POLLING, f"turned away p95, {clients} clients", _p95(seen[clients].turned_away), "ms", target=SOON)


def _p95(seconds: Sequence[float]) -> float:
    return percentile(sorted(seconds), 95) * 1e3


def run_mailbox_throughput(bench: Bench, *, per_call: int = 100, window: int = 3_000) -> Outcome:
    """Publish batches so that up to `window` messages wait or are in flight, as fast as they are acknowledged."""
    (event_type,) = benchmarks_bench.event_types(bench.api, 1)
    mailbox, key = benchmarks_bench.mailbox(bench.api, event_type)
    publisher_key = benchmarks_bench.publisher_key(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], CONNECTIONS, per_call, window=window)
    with fetching(Errand(bench.stack.web, key, mailbox, CONSUMERS, MOST, WAIT_SECONDS)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, end = watched(bench, consumers, publisher)
            measured = consumers.report()
            published = publisher.stop()
        wanted = wanted_from(published)
        wrong = bench.unfinished(consumers, sum(wanted.values()))
        taken = consumers.report()
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    speed = Figure(MAILBOX_THROUGHPUT, "acknowledged", rate, "/s", target=TARGET)
    busy = Figure(MAILBOX_THROUGHPUT, "publishers awaiting answers", awaiting(published, begin, end), "% of time")
    wrong += [*publishing_problems(published), *faults(taken), *problems(taken.receipts, wanted)]
    return Outcome([speed, *_fetched(measured), busy, *cpu_figures(MAILBOX_THROUGHPUT, begin, end)], wrong)


def _fetched(measured: Taken) -> Iterator[Figure]:
    yield Figure(
        MAILBOX_THROUGHPUT, "messages a fetch", measured.messages / max(1, len(measured.fetched)), f"of {MOST}"
    )
    asked = len(measured.fetched) + len(measured.in_vain)
    yield Figure(MAILBOX_THROUGHPUT, "fetches in vain", 100 * len(measured.in_vain) / max(1, asked), "% of all")
    yield from calls(MAILBOX_THROUGHPUT, measured)
