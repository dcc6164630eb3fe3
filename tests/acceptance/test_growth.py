"""Publishing and delivering use no ids of which PostgreSQL has a limited number."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import psycopg
import pytest

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.real_broker import Broker

pytestmark = pytest.mark.faults

MULTIXACTS = "SELECT next_multixact_id::text::bigint FROM pg_control_checkpoint()"
PUBLISHERS = 4
SUBSCRIBERS = 5
BATCH = 100
CALLS = 5
"""Batches, and single events, of each publisher."""
DEADLINE_SECONDS = 300.0


def multixacts(broker: Broker) -> int:
    """Return the id of the next MultiXact."""
    with psycopg.connect(broker.stack.environment["DATABASE_URL"], autocommit=True) as connection:
        connection.execute("CHECKPOINT")
        return int(*(connection.execute(MULTIXACTS).fetchone() or ()))


def test_publishing_and_delivering_uses_no_multixact_ids(broker: Broker, receiver: Receiver) -> None:
    """Several publishers and both workers use the same rows of the configuration, and of the lines, at once."""
    topic, queue = broker.event_type(), broker.event_type(kind="QUEUE")
    taken = [broker.subscribe(receiver.url("/topic"), topic) for _ in range(SUBSCRIBERS)]
    jobs = [broker.subscribe(receiver.url("/queue"), queue, filter=text) for text in ("", "$$->'Body' is not null")]
    before = multixacts(broker)
    events = [{"event": event_type, "body": number} for event_type in (topic, queue) for number in range(BATCH // 2)]
    with ThreadPoolExecutor(PUBLISHERS) as publishers:
        for call in range(PUBLISHERS * CALLS):
            publishers.submit(broker.publish, "", json.dumps({"events": events}).encode())
            publishers.submit(broker.publish, topic, b"1", {"Idempotency-Key": f"key-{call}"})
    calls = PUBLISHERS * CALLS
    expected = {"/topic": calls * (BATCH // 2 + 1) * SUBSCRIBERS, "/queue": calls * BATCH // 2 * len(jobs)}
    wait_until(partial(has_received, receiver, expected), DEADLINE_SECONDS, saying=lambda: len(receiver.log))
    wait_until(lambda: broker.has_finished(taken), DEADLINE_SECONDS)
    assert multixacts(broker) == before
    broker.inactivate_all()


def has_received(receiver: Receiver, expected: dict[str, int]) -> bool:
    return {path: len(receiver.of(path)) for path in expected} == expected
