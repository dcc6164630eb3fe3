"""`mailbox.million`: how long a fetch takes where a million messages lie, four consumers by turns with their acks.

Messages that nobody has fetched; and messages that all had who fetched, and died of. Publishers go on beside.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import fetching, publishing
from benchmarks.errands import Errand, Taken
from benchmarks.figures import Figure, Outcome, at_most, percentile
from benchmarks.filling import settle_down
from benchmarks.moments import cpu_figures, watched
from benchmarks.publisher import Plan, Published
from benchmarks.receipts import ANYBODY, problems
from benchmarks.scenarios.filling import FRESH, STREAM, TIMED_OUT, fill_mailbox
from benchmarks.scenarios.taking import calls, faults, purge, wanted_from
from benchmarks.scenarios.throughput import CONSUMERS, MOST, WAIT_SECONDS
from benchmarks.throughput import publishing_problems
from benchmarks.timing import accepted

NAME: Final = "mailbox.million"
TARGETS: Final = {"fetch p95": at_most(10)}
CONNECTIONS: Final = 4
"""Of the publishers."""
STATES: Final[Mapping[str, Mapping[str, object]]] = {"": FRESH, ", timed out": TIMED_OUT}
FILLED: Final = (ANYBODY, STREAM)
IDS: Final = """
    SELECT subscriber.id, subscription.id, event_type_id
    FROM subscriptions_subscription subscription
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscriber_id WHERE subscriber.name = %s
"""


def run(bench: Bench, *, messages: int = 1_000_000, per_second: float = 50) -> Outcome:
    """Fill a mailbox by SQL, fetch from it for a while, and purge it: for each state of the messages."""
    outcomes = [_measured(bench, of, messages, per_second) for of in STATES]
    return Outcome(
        [figure for outcome in outcomes for figure in outcome.figures],
        [problem for outcome in outcomes for problem in outcome.problems],
    )


def _measured(bench: Bench, of: str, messages: int, per_second: float) -> Outcome:
    (event_type,) = arranging.event_types(bench.api, 1)
    mailbox, key = arranging.mailbox(bench.api, event_type)
    _fill(bench, mailbox, messages, STATES[of])
    publisher_key = arranging.publisher_key(bench.api)
    plan = Plan(bench.stack.web, publisher_key, [event_type], CONNECTIONS, per_call=1, per_second=per_second)
    again = STREAM if STATES[of] is TIMED_OUT else None
    with fetching(Errand(bench.stack.web, key, mailbox, CONSUMERS, MOST, WAIT_SECONDS, again)) as consumers:
        with publishing(plan, consumers) as publisher:
            begin, end = watched(bench, consumers, publisher)
            taken, published = consumers.report(), publisher.stop()
        last = consumers.end()
    bench.say("purging it")
    purge(bench, mailbox)
    rate = (end.delivered - begin.delivered) / (end.at - begin.at)
    speed = Figure(NAME, f"acknowledged{of}", rate, "/s")
    beside = Figure(NAME, f"accepted p95{of}", percentile(accepted(published, since=begin.at), 95) * 1e3, "ms")
    used = [replace(figure, figure=figure.figure + of) for figure in cpu_figures(NAME, begin, end)]
    return Outcome([*calls(NAME, taken, TARGETS, of=of), speed, beside, *used], [*_problems(last, published)])


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
