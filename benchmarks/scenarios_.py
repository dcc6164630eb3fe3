"""Every scenario by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Outcome
from benchmarks.scenarios import (
    dense,
    fast,
    growth,
    hanging,
    latency,
    latency_,
    mailbox,
    million,
    queue,
    rejected,
    retrying,
    scale,
    single,
    soak,
    summaries,
    sync,
    topic,
)
from benchmarks.scenarios import throughput as fetched


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario, and what people are told about it."""

    run: Callable[[Bench], Outcome]
    about: str
    is_long: bool = False
    """Whether it runs only when it is named."""


SCENARIOS: Final = {
    dense.NAME: Scenario(dense.run, "100 subscribers with an event type each, batches of 100 as fast as they go"),
    single.NAME: Scenario(single.run, "one subscriber, batches of 100 as fast as they go"),
    latency_.NAME: Scenario(latency_.run, "200 single publishes a second over 20 subscribers"),
    topic.NAME: Scenario(topic.run, "one message to 1,000 subscribers, ten times"),
    hanging.NAME: Scenario(hanging.run, "100 single publishes a second over 300 subscribers of which 50 never answer"),
    retrying.NAME: Scenario(
        retrying.run, "as topic.dense, beside 100,000 deliveries in retry lines: none, waiting, due", is_long=True
    ),
    rejected.NAME: Scenario(
        rejected.run, "as topic.dense, to endpoints that answer 204 and such that answer 404, by turns", is_long=True
    ),
    fast.NAME: Scenario(fast.run, "a QUEUE with three endpoints, batches of 100 as fast as they go"),
    queue.NAME: Scenario(
        queue.run, "a QUEUE with three endpoints that take 100 ms each, more jobs than may be under way"
    ),
    sync.NAME: Scenario(sync.run, "100 SYNC calls a second, by turns with the same questions to the endpoint itself"),
    scale.NAME: Scenario(scale.run, "10, 1,000 and 10,000 filtered subscriptions of which 5 match each message"),
    latency.NAME: Scenario(latency.run, "100 single publishes a second over 100 subscribers beside 50 endless scripts"),
    fetched.NAME: Scenario(
        fetched.run, "a mailbox with four consumers that fetch ten messages a call, as fast as they go"
    ),
    mailbox.NAME: Scenario(
        mailbox.run, "50 single publishes a second to a mailbox for which nobody, 48 and 200 clients wait", is_long=True
    ),
    million.NAME: Scenario(million.run, "a mailbox with a million messages and four consumers", is_long=True),
    soak.NAME: Scenario(
        soak.run, "half of what topic.dense can do, for --minutes; memory and hot tables", is_long=True
    ),
    growth.NAME: Scenario(growth.run, "10 million finished deliveries beside those under way", is_long=True),
    summaries.NAME: Scenario(
        summaries.run, "--attempts summed up by Spark and by PostgreSQL alone, and beside deliveries", is_long=True
    ),
}
