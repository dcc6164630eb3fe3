"""Volatile messages while workers and Redis are restarted: lost they may be, sent twice never, and each is counted."""

import json
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
import requests

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.faults.breakage import away, flush_redis, restarted, send
from tests.support.faults.figures import Report
from tests.support.faults.load import COUNTS, STORED, Load, volatile_caller
from tests.support.faults.verdicts import Verdict
from tests.support.real_broker import Broker

PATHS = ("/volatile-1", "/volatile-2")
AROUND = 50
"""Messages before and after each fault."""


@pytest.fixture
def event_type(broker: Broker, receiver: Receiver) -> Iterator[str]:
    name = broker.event_type()
    for path in PATHS:
        broker.subscribe(receiver.url(path), name)
    yield name
    broker.inactivate_all()


def numbers(receiver: Receiver, path: str) -> Counter[int]:
    """Return how often each message has come."""
    return Counter(json.loads(body)["number"] for body in receiver.bodies(path))


def came_in_all(receiver: Receiver) -> int:
    return sum(len(receiver.of(path)) for path in PATHS)


def ended(broker: Broker, event_type: str) -> tuple[int, int]:
    """Return how many shares were delivered, and how many ended otherwise, as far as they are counted."""
    shares = [row for row in broker.ask(COUNTS, event_type=event_type) if row[0]]
    return sum(row[2] for row in shares), sum(row[3] for row in shares)


@pytest.mark.behaviour("2.9", "11.3")
@pytest.mark.case("volatile-restart")
def test_workers_and_redis_are_restarted_while_volatile_messages_are_sent(
    load: Load, figures: Report, verdict: Verdict, receiver: Receiver, event_type: str
) -> None:
    broker = load.broker
    publishing = volatile_caller(broker, event_type)

    def go_on() -> None:
        wanted = len(receiver.of(PATHS[0])) + AROUND
        wait_until(lambda: len(receiver.of(PATHS[0])) >= wanted)

    load.start()
    publishing.start()
    go_on()
    first, *_, last = broker.workers()
    with restarted(first), load.fault():
        first.kill()
    came_by_then = came_in_all(receiver)
    go_on()
    with load.fault():
        flush_redis(broker)
    go_on()
    with load.fault(), away(broker.stack.supervisor["redis"]):
        wait_until(lambda: publishing.calls[-1].status == requests.codes.service_unavailable)
    go_on()
    with restarted(last), load.fault():
        send(signal.SIGTERM, last)
    go_on()
    publishing.stop()
    assert figures().broken == {}

    answers = [call.status for call in publishing.calls]
    accepted = answers.count(requests.codes.accepted)
    wait_until(lambda: {row[1] for row in broker.ask(COUNTS, event_type=event_type)} == {accepted})
    # What is not counted is no more than the process that was killed may have taken along.
    wait_until(lambda: came_in_all(receiver) <= came_by_then + sum(ended(broker, event_type)))
    arrived = [numbers(receiver, path) for path in PATHS]
    delivered, otherwise = ended(broker, event_type)
    came = sum(map(len, arrived))
    recovered = sum(answers[number] != requests.codes.accepted for path in arrived for number in path)
    verdict.measured |= {"promised": len(PATHS) * accepted, "came": came, "came_though_refused": recovered}

    assert {*answers} == {requests.codes.accepted, requests.codes.service_unavailable}
    assert max(count for path in arrived for count in path.values()) == 1
    assert delivered + otherwise <= len(PATHS) * accepted + recovered
    assert delivered <= came
    assert broker.ask(STORED, event_type=event_type) == [(0,)]
