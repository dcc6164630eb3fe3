"""`mailbox.*`: how fast a mailbox is emptied, how soon waiting clients have a message, and how a full one fares."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.bench import Bench
from benchmarks.connection import NUMBER, body_of
from benchmarks.figures import Figure, Outcome, at_least, at_most, merged, p95_ms, percentile, percentiles, ratio
from benchmarks.filling import settle_down
from benchmarks.mailbox_client import FetchPlan, fetching
from benchmarks.measure import expected_by_any, publishing_problems, watched
from benchmarks.publisher import Pace
from benchmarks.receipts import ANY

MAX_MESSAGES: Final = 10
"""In one call."""
CONSUMERS: Final = 4

SEATS: Final = 48
"""Clients that may wait in the one web process of the stack."""
CLIENTS: Final = 200
POLL_SECONDS: Final = 20.0
ROUNDS: Final = 2
SOON: Final = at_most(100)

STREAM: Final = 99
"""Of the messages that are stored by SQL."""
STORED: Final = (ANY, STREAM)
BODY: Final = {"body": body_of(STREAM, 0, 0).decode(), "place": NUMBER.start + 1, "digits": NUMBER.stop - NUMBER.start}
FRESH: Final = {"status": "PENDING", "waits_for": "TURN", "fetches": 0, "fetched_until": None}
TIMED_OUT: Final = {"status": "IN_FLIGHT", "waits_for": "RETURN", "fetches": 1, "fetched_until": "now"}
"""Fetched once, and timed out as soon as it was stored."""

FILL: Final = """
WITH mailbox AS (
  SELECT subscription.id AS subscription_id, event_type_id, line.id AS line_id
    FROM subscriptions_subscription subscription
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscriber_id
    JOIN delivery_line line ON line.lane = 'main' AND line.subscriber_id = subscriber.id
   WHERE subscriber.name = %(mailbox)s),
message AS (
  INSERT INTO delivery_message (id, event_type_id, body, size, content_type, headers, outcome, deliveries_count)
  SELECT nextval('delivery_message_id_seq'), event_type_id,
         convert_to(overlay(%(body)s PLACING lpad(n::text, %(digits)s, '0') FROM %(place)s), 'UTF8'),
         octet_length(%(body)s), 'application/json', '[]', 'ROUTED', 1
    FROM mailbox, generate_series(1, %(count)s::int) n
  RETURNING id, size),
filled AS (
  INSERT INTO delivery_open (message_id, line_id, subscription_id, size, status, waits_for, fetches, fetched_until)
  SELECT message.id, line_id, subscription_id, message.size, %(status)s, %(waits_for)s, %(fetches)s,
         %(fetched_until)s::timestamptz
    FROM message, mailbox ORDER BY message.id
  RETURNING 1)
SELECT count(*) FROM filled
"""
"""Messages of today, numbered from 1, with bodies as publishers send them."""


def run_throughput(bench: Bench, *, per_call: int = 100, window: int = 3_000) -> Outcome:
    """Publish to a mailbox as fast as four consumers fetch and acknowledge, ten messages a call.

    Up to `window` messages are waiting or in flight. No client waits, so that a fetch's duration is its own.
    """
    event_type, mailbox, key = bench.create_mailbox()
    with fetching(FetchPlan(bench.stack.web, key, mailbox, CONSUMERS, MAX_MESSAGES, wait_seconds=0.0)) as consumers:
        found = watched(bench, [event_type], Pace(per_call, window), consumers)
        during = consumers.report()
        expected = expected_by_any(found.published)
        wrong = bench.unfinished(consumers, sum(expected.values()))
        last = consumers.report()
    calls = len(during.fetched) + len(during.empty)
    figures = [
        Figure("acknowledged", found.rate, "/s", target=at_least(3_000)),
        Figure("messages a fetch", ratio(during.messages, len(during.fetched)), f"of {MAX_MESSAGES}"),
        Figure("empty fetches", 100 * ratio(len(during.empty), calls), "% of all"),
        *percentiles("fetch", during.fetched),
        *percentiles("acknowledge", during.acknowledged),
        found.awaiting(),
        *found.costs(),
    ]
    problems = [*publishing_problems(found.published), *last.problems(), *last.receipts.problems(expected)]
    return Outcome(figures, [*wrong, *problems])


def run_million(bench: Bench, *, messages: int = 1_000_000, per_second: float = 50) -> Outcome:
    """Fetch from a mailbox with a million messages, new ones and ones that timed out, with four consumers."""
    states: dict[str, Mapping[str, object]] = {"": FRESH, ", timed out": TIMED_OUT}
    return merged({end: _full_mailbox(bench, messages, per_second, state) for end, state in states.items()})


def _full_mailbox(bench: Bench, messages: int, per_second: float, state: Mapping[str, object]) -> Outcome:
    event_type, mailbox, key = bench.create_mailbox()
    bench.say(f"storing {messages:,} messages in a mailbox")
    bench.ask(FILL, mailbox=mailbox, count=messages, **BODY, **state)
    settle_down(bench.stack.environment["DATABASE_URL"])
    redelivered = STREAM if state["fetches"] else None
    plan = FetchPlan(bench.stack.web, key, mailbox, CONSUMERS, MAX_MESSAGES, 0.0, redelivered)
    with fetching(plan) as consumers:
        found = watched(bench, [event_type], Pace(per_second=per_second), consumers)
        during, last = consumers.report(), consumers.end()
    bench.say("purging it")
    purge(bench, mailbox)
    figures = [
        *percentiles("fetch", during.fetched, {"fetch p95": at_most(10)}),
        *percentiles("acknowledge", during.acknowledged),
        Figure("acknowledged", found.rate, "/s"),
        Figure("accepted p95", p95_ms(found.accept_seconds()), "ms"),
        *found.costs(),
    ]
    # The oldest come first, so of each stream all must have come up to the highest.
    streams = {STORED, *expected_by_any(found.published)}
    expected = {stream: highest for stream, highest in last.receipts.highest.items() if stream in streams}
    missing = [] if STORED in expected else ["none of the stored messages was fetched"]
    problems = [*publishing_problems(found.published), *last.problems(), *last.receipts.problems(expected)]
    return Outcome(figures, [*problems, *missing])


def purge(bench: Bench, mailbox: str) -> None:
    """Leave nothing in a mailbox."""
    while not bench.api.send("POST", f"mailboxes/{mailbox}/purge")["complete"]:
        pass


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
    """Publish 50 single messages a second to a mailbox for which no, 48 and 200 clients wait."""
    times: defaultdict[int, PollTimes] = defaultdict(PollTimes)
    for number in range(ROUNDS):
        for count in sorted((0, seats, clients), reverse=bool(number % 2)):
            _poll(bench, count, per_second, times[count])
    wrong = [text for found in times.values() for text in found.problems]
    if times[seats].turned_away:
        wrong.append(f"{len(times[seats].turned_away)} of {seats} clients were turned away")
    if not times[clients].turned_away:
        wrong.append(f"all of {clients} clients were let wait")
    return Outcome([*_poll_figures(times, seats, clients)], wrong)


def _poll(bench: Bench, clients: int, per_second: float, times: PollTimes) -> None:
    """Publish to a new mailbox from which clients fetch one message a call; add the times and the problems."""
    event_type, mailbox, key = bench.create_mailbox()
    with fetching(FetchPlan(bench.stack.web, key, mailbox, clients, 1, POLL_SECONDS)) as consumers:
        found = watched(bench, [event_type], Pace(per_second=per_second), consumers)
        times.accepted += found.accept_seconds()
        times.problems += publishing_problems(found.published)
        if not clients:
            purge(bench, mailbox)
            return
        expected = expected_by_any(found.published)
        times.problems += bench.unfinished(consumers, sum(expected.values()))
        fetched = consumers.report()
    times.reached += fetched.receipts.seconds()
    times.others += fetched.others
    times.turned_away += fetched.turned_away
    times.problems += [*fetched.problems(), *fetched.receipts.problems(expected)]


def _poll_figures(times: Mapping[int, PollTimes], seats: int, clients: int) -> Iterator[Figure]:
    alone = p95_ms(times[0].accepted)
    yield Figure("accepted p95, no client waits", alone, "ms")
    for count in (seats, clients):
        found = times[count]
        yield Figure(f"accepted p95, {count} clients", p95_ms(found.accepted), "ms")
        yield Figure(f"reached p95, {count} clients", p95_ms(found.reached), "ms", target=SOON)
        yield Figure(f"others waiting p50, {count} clients", percentile(sorted(found.others), 50), "clients")
    slower = ratio(p95_ms(times[seats].accepted), alone)
    yield Figure(f"accepted p95, {seats} clients : none", slower, "times", target=at_most(1.2))
    yield Figure(f"turned away p95, {clients} clients", p95_ms(times[clients].turned_away), "ms", target=SOON)
