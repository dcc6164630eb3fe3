"""`mailbox.million`: how long a fetch takes where a million messages lie, four consumers by turns with their acks."""

import time
from typing import Final

from benchmarks import arranging
from benchmarks.bench import Bench
from benchmarks.children import fetching
from benchmarks.errands import Errand
from benchmarks.figures import Figure, Outcome, at_most
from benchmarks.filling import settle_down
from benchmarks.mailbox.filling import fill_mailbox
from benchmarks.mailbox.taking import calls, faults, purge
from benchmarks.mailbox.throughput import CONSUMERS, MOST, WAIT_SECONDS
from benchmarks.receipts import problems

NAME: Final = "mailbox.million"
TARGETS: Final = {"fetch p95": at_most(10)}
IDS: Final = """
    SELECT subscriber.id, subscription.id, event_type_id
    FROM subscriptions_subscription subscription
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscriber_id WHERE subscriber.name = %s
"""


def run(bench: Bench, *, messages: int = 1_000_000) -> Outcome:
    """Fill a mailbox by SQL, fetch from it for a while, and purge it."""
    (event_type,) = arranging.event_types(bench.api, 1)
    mailbox, key = arranging.mailbox(bench.api, event_type)
    _fill(bench, mailbox, messages)
    with fetching(Errand(bench.stack.web, key, mailbox, CONSUMERS, MOST, WAIT_SECONDS)) as consumers:
        time.sleep(bench.options.warm_seconds)
        consumers.report()  # so that what comes in the next one has been measured
        began = time.monotonic()
        time.sleep(bench.options.seconds)
        taken, seconds = consumers.report(), time.monotonic() - began
        last = consumers.end()
    bench.say("purging it")
    purge(bench, mailbox)
    speed = Figure(NAME, "fetched", taken.messages / seconds, "/s")
    wrong = [*faults(last), *problems(last.receipts, last.receipts.last)]
    return Outcome([*calls(NAME, taken, TARGETS), speed], wrong)


def _fill(bench: Bench, mailbox: str, messages: int) -> None:
    bench.say(f"laying {messages:,} messages into a mailbox")
    ((subscriber, subscription, event_type),) = bench.ask(IDS, mailbox)
    url = bench.stack.environment["DATABASE_URL"]
    fill_mailbox(url, *(int(str(one)) for one in (subscriber, subscription, event_type)), count=messages)
    settle_down(url)
