"""`mailbox.*`: how fast a mailbox is emptied, how soon waiting clients have a message, and how a full one fares."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import psycopg

from benchmarks.bench import Bench, create_event_types, create_mailbox, create_publisher
from benchmarks.connection import NUMBER, body_of
from benchmarks.figures import Figure, Outcome, Target, at_least, at_most, percentile
from benchmarks.filling import SLICE, settle_down
from benchmarks.mailbox_client import Fetched, FetchPlan, RunningConsumers, fetching
from benchmarks.measure import (
    accepted,
    awaiting,
    cpu_figures,
    expected_by_any,
    percentiles,
    publishing_problems,
    watched,
)
from benchmarks.publisher import Plan, Published, publishing
from benchmarks.receipts import ANY, problems
from delivery.due_times import UNTIL_RETURNED

THROUGHPUT: Final = "mailbox.throughput"
POLLING: Final = "mailbox.polling"
MILLION: Final = "mailbox.million"

MAX_MESSAGES: Final = 10
"""In one call."""
CONSUMERS: Final = 4
CONNECTIONS: Final = 4
"""Of the publishers."""

SEATS: Final = 48
"""Clients that may wait in the one web process of the stack."""
CLIENTS: Final = 200
POLL_SECONDS: Final = 20.0
ROUNDS: Final = 2
SOON: Final = at_most(100)

STREAM: Final = 99
"""Of the messages that are stored by SQL."""
STORED: Final = (ANY, STREAM)
FRESH: Final = {"status": "PENDING", "due_at": None, "fetches": 0, "fetched_until": None}
TIMED_OUT: Final = {"status": "IN_FLIGHT", "due_at": UNTIL_RETURNED, "fetches": 1, "fetched_until": "now"}
"""Fetched once, and timed out as soon as it was stored."""
STATES: Final[Mapping[str, Mapping[str, object]]] = {"": FRESH, ", timed out": TIMED_OUT}

IDS: Final = """
    SELECT subscriber.id, subscription.id, event_type_id
    FROM subscriptions_subscription subscription
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscriber_id WHERE subscriber.name = %s
"""


def faults_of(fetched: Fetched) -> list[str]:
    """Return what should not have been answered like this."""
    return [f"{count} times {what}" for what, count in sorted(fetched.faults.items())]


def call_figures(scenario: str, fetched: Fetched, targets: Mapping[str, Target], suffix: str = "") -> Iterator[Figure]:
    """Yield percentiles of the durations of fetches and acknowledgements."""
    yield from percentiles(scenario, "fetch", sorted(fetched.fetched), targets, suffix)
    yield from percentiles(scenario, "acknowledge", sorted(fetched.acknowledged), targets, suffix)


def purge(bench: Bench, mailbox: str) -> None:
    """Leave nothing in a mailbox."""
    while not bench.api.send("POST", f"mailboxes/{mailbox}/purge")["complete"]:
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
    """Store `count` messages in this state, with bodies as publishers send them, in a subscriber's mailbox."""
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


def run_throughput(bench: Bench, *, per_call: int = 100, window: int = 3_000) -> Outcome:
    """Publish batches as fast as they are acknowledged, up to `window` messages waiting or in flight.

    No client waits, so that a fetch's duration is its own.
    """
    (event_type,) = create_event_types(bench.api, 1)
    mailbox, key = create_mailbox(bench.api, event_type)
    plan = Plan(bench.stack.web, create_publisher(bench.api), [event_type], CONNECTIONS, per_call, window=window)
    with fetching(FetchPlan(bench.stack.web, key, mailbox, CONSUMERS, MAX_MESSAGES, wait_seconds=0.0)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, end = watched(bench, consumers, publisher)
            during = consumers.report()
            published = publisher.stop()
        expected = expected_by_any(published)
        wrong = bench.unfinished(consumers, sum(expected.values()))
        last = consumers.report()
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    calls = len(during.fetched) + len(during.empty)
    figures = [
        Figure(THROUGHPUT, "acknowledged", rate, "/s", target=at_least(3_000)),
        Figure(THROUGHPUT, "messages a fetch", during.messages / max(1, len(during.fetched)), f"of {MAX_MESSAGES}"),
        Figure(THROUGHPUT, "empty fetches", 100 * len(during.empty) / max(1, calls), "% of all"),
        *call_figures(THROUGHPUT, during, {}),
        Figure(THROUGHPUT, "publishers awaiting answers", awaiting(published, begin, end), "% of time"),
        *cpu_figures(THROUGHPUT, begin, end),
    ]
    return Outcome(
        figures, [*wrong, *publishing_problems(published), *faults_of(last), *problems(last.receipts, expected)]
    )


def run_million(bench: Bench, *, messages: int = 1_000_000, per_second: float = 50) -> Outcome:
    """Fill a mailbox by SQL, fetch from it for a while, and purge it: for each state of the messages."""
    outcomes = [_full_mailbox(bench, suffix, messages, per_second) for suffix in STATES]
    return Outcome(
        [figure for outcome in outcomes for figure in outcome.figures],
        [problem for outcome in outcomes for problem in outcome.problems],
    )


def _full_mailbox(bench: Bench, suffix: str, messages: int, per_second: float) -> Outcome:
    (event_type,) = create_event_types(bench.api, 1)
    mailbox, key = create_mailbox(bench.api, event_type)
    bench.say(f"storing {messages:,} messages in a mailbox")
    ((subscriber, subscription, event_type_id),) = bench.ask(IDS, mailbox)
    url = bench.stack.environment["DATABASE_URL"]
    ids = (int(str(one)) for one in (subscriber, subscription, event_type_id))
    fill_mailbox(url, *ids, count=messages, state=STATES[suffix])
    settle_down(url)
    publisher_key = create_publisher(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], CONNECTIONS, per_call=1, per_second=per_second)
    redelivered = STREAM if STATES[suffix] is TIMED_OUT else None
    fetches = FetchPlan(bench.stack.web, key, mailbox, CONSUMERS, MAX_MESSAGES, 0.0, redelivered)
    with fetching(fetches) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, end = watched(bench, consumers, publisher)
            during, published = consumers.report(), publisher.stop()
        last = consumers.end()
    bench.say("purging it")
    purge(bench, mailbox)
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    beside = percentile(accepted(published, since=begin.at), 95) * 1e3
    figures = [
        *call_figures(MILLION, during, {"fetch p95": at_most(10)}, suffix),
        Figure(MILLION, f"acknowledged{suffix}", rate, "/s"),
        Figure(MILLION, f"accepted p95{suffix}", beside, "ms"),
        *(replace(figure, figure=figure.figure + suffix) for figure in cpu_figures(MILLION, begin, end)),
    ]
    return Outcome(figures, [*_problems(last, published)])


def _problems(last: Fetched, published: Sequence[Published]) -> Iterator[str]:
    """Yield what was wrong: the oldest come first, so of each stream all must have come up to the highest."""
    streams = {STORED, *expected_by_any(published)}
    expected = {stream: highest for stream, highest in last.receipts.highest.items() if stream in streams}
    yield from (*publishing_problems(published), *faults_of(last), *problems(last.receipts, expected))
    if STORED not in expected:
        yield "none of the stored messages was fetched"


@dataclass(slots=True)
class PollTimes:
    """The results for one number of clients, over all rounds; times in seconds."""

    accepted: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    """Other clients that were waiting, or about to, at each message that arrived."""
    turned_away: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run_polling(bench: Bench, *, per_second: float = 50, seats: int = SEATS, clients: int = CLIENTS) -> Outcome:
    """Publish singly and evenly to a mailbox without clients, with as many as may wait, and with many more."""
    times: defaultdict[int, PollTimes] = defaultdict(PollTimes)
    for number in range(ROUNDS):
        for count in sorted((0, seats, clients), reverse=bool(number % 2)):
            _poll(bench, count, per_second, times[count])
    wrong = [text for one in times.values() for text in one.problems]
    if times[seats].turned_away:
        wrong.append(f"{len(times[seats].turned_away)} of {seats} clients were turned away")
    if not times[clients].turned_away:
        wrong.append(f"all of {clients} clients were let wait")
    return Outcome([*_poll_figures(times, seats, clients)], wrong)


def _poll(bench: Bench, clients: int, per_second: float, times: PollTimes) -> None:
    """Publish to a new mailbox from which clients fetch a message a call."""
    (event_type,) = create_event_types(bench.api, 1)
    mailbox, key = create_mailbox(bench.api, event_type)
    publisher_key = create_publisher(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], CONNECTIONS, per_call=1, per_second=per_second)
    with fetching(FetchPlan(bench.stack.web, key, mailbox, clients, 1, POLL_SECONDS)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, _ = watched(bench, consumers, publisher)
            published = publisher.stop()
        times.accepted += accepted(published, since=begin.at)
        times.problems += publishing_problems(published)
        if clients:
            _record_arrivals(bench, consumers, published, times)
        else:
            purge(bench, mailbox)


def _record_arrivals(
    bench: Bench, consumers: RunningConsumers, published: Sequence[Published], times: PollTimes
) -> None:
    """Wait until all is acknowledged, then add how soon it arrived and what was wrong."""
    expected = expected_by_any(published)
    unfinished = bench.unfinished(consumers, sum(expected.values()))
    fetched = consumers.report()
    times.reached += fetched.receipts.seconds()
    times.others += fetched.others
    times.turned_away += fetched.turned_away
    times.problems += [*unfinished, *faults_of(fetched), *problems(fetched.receipts, expected)]


def _poll_figures(times: Mapping[int, PollTimes], seats: int, clients: int) -> Iterator[Figure]:
    alone = _p95(times[0].accepted)
    yield Figure(POLLING, "accepted p95, no client waits", alone, "ms")
    for count in (seats, clients):
        one = times[count]
        yield Figure(POLLING, f"accepted p95, {count} clients", _p95(one.accepted), "ms")
        yield Figure(POLLING, f"reached p95, {count} clients", _p95(one.reached), "ms", target=SOON)
        yield Figure(POLLING, f"others waiting p50, {count} clients", percentile(sorted(one.others), 50), "clients")
    ratio = _p95(times[seats].accepted) / max(1e-9, alone)
    yield Figure(POLLING, f"accepted p95, {seats} clients : none", ratio, "times", target=at_most(1.2))
    yield Figure(POLLING, f"turned away p95, {clients} clients", _p95(times[clients].turned_away), "ms", target=SOON)


def _p95(seconds: Sequence[float]) -> float:
    return percentile(sorted(seconds), 95) * 1e3
