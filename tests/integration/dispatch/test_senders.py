"""Each QUEUE sender is a Celery queue: a worker that consumes only that does only its work, on real Celery."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from broker_project.celery import app
from broker_project.core.db import rows
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from delivery.limits import TAKEOVER_SECONDS
from delivery.models import Delivery, Line
from subscriptions.models import EventKind
from tests.support import broker, factories
from tests.support.celery_worker import celery_worker

PATHS = ("/a", "/b")
JOBS, EVENTS, TIMES = 100, 40, 3
QUEUES_OF = {
    "third": {"queue.3"},
    "others": {"queue.0", "queue.1", "queue.2", "queue.4"},
    "topics": {"topic", "retry", "callbacks"},
}
"""By the worker that consumes them."""

NOTE_CLAIMS = """
CREATE TABLE claims AS SELECT worker, queue, 0::float8 AS seconds FROM delivery_line LIMIT 0;
CREATE FUNCTION note_claim() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO claims VALUES (NEW.worker, NEW.queue, extract(epoch FROM clock_timestamp() - OLD.lease_until));
  RETURN NEW; END $$;
CREATE TRIGGER note_claim AFTER UPDATE ON delivery_line FOR EACH ROW WHEN (NEW.epoch > OLD.epoch)
  EXECUTE FUNCTION note_claim();
"""


@pytest.fixture
def claims(storage: None) -> Iterator[None]:
    """A table that says which worker has claimed a line of which queue, and how long after an abandoned lease."""
    with connection.cursor() as cursor:
        cursor.execute(NOTE_CLAIMS)
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION note_claim CASCADE; DROP TABLE claims")


def claimed() -> dict[str, set[str]]:
    """Return the queues whose lines each worker has claimed."""
    queues: dict[str, set[str]] = defaultdict(set)
    for worker, queue in rows("SELECT worker, queue FROM claims"):
        queues[worker].add(queue)
    return queues


def pools() -> Counter[str]:
    """Return the kinds of pool of the workers that answer."""
    answers: dict[str, Any] = app.control.inspect(timeout=0.5).stats() or {}
    return Counter(stats["pool"]["implementation"] for stats in answers.values())


@pytest.mark.behaviour("6.2")
def test_a_sender_with_a_worker_of_its_own_is_left_to_it_until_it_is_gone(receiver: Receiver, claims: None) -> None:
    jobs = factories.event_type(kind=EventKind.QUEUE)
    for path in PATHS:
        factories.subscription(event_type=jobs, endpoint=receiver.url(path))
    events = factories.subscription(endpoint=receiver.url("/events")).event_type
    with contextlib.ExitStack() as running:
        process_of = {name: running.enter_context(celery_worker(name, queues)) for name, queues in QUEUES_OF.items()}
        wait_until(lambda: pools() == {"celery.concurrency.thread:TaskPool": len(process_of)}, saying=pools)
        for time in range(TIMES):
            broker.publish_numbered(jobs, JOBS, first=time * JOBS)
            broker.publish_numbered(events, EVENTS)
            broker.wait_until_done()
        assert claimed() == {name: queues - {"retry", "callbacks"} for name, queues in QUEUES_OF.items()}

        gate = receiver.gate("/a")
        for path in PATHS:
            receiver.on(path, gate)
        broker.publish_numbered(jobs, JOBS, first=TIMES * JOBS)
        third = Line.objects.get(sender=3)
        wait_until(Delivery.objects.filter(line=third, status="IN_FLIGHT").exists)
        process_of["third"].kill()
        process_of["third"].wait()
        gate.open()
        broker.expire_lease(third)
        broker.wait_until_done()
    ((worker, queue, seconds),) = rows("SELECT * FROM claims WHERE seconds IS NOT NULL")
    assert (worker in {"others", "topics"}, queue, seconds >= TAKEOVER_SECONDS) == (True, "queue.3", True)
    requests = [request for path in PATHS for request in receiver.of(path)]
    assert {int(request.body) for request in requests} == {*range((TIMES + 1) * JOBS)}
    unflagged = Counter(request.body for request in requests if not request.is_flagged)
    assert {*unflagged.values()} == {1}
    assert Counter(Delivery.objects.filter(subscription__event_type=jobs).values_list("status", flat=True)) == {
        "DELIVERED": (TIMES + 1) * JOBS,
        "REDUNDANT": (TIMES + 1) * JOBS,
    }
