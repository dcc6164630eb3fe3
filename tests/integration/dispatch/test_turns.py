"""A run is a chain of turns, on real Celery (contract 4.14)."""

import asyncio
import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from broker_project.celery import app
from broker_project.core.db import rows
from broker_project.stack.application import PROJECT
from broker_project.stack.folders import ROOT
from broker_project.stack.load.receiver import Behaviour, Receiver, answer, raw
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch import notify
from delivery.limits import TAKEOVER_SECONDS
from delivery.models import Delivery, Line
from subscriptions.models import EventKind
from tests.support import broker, factories
from tests.support.broker import line_of, publish_numbered, wait_until_done
from tests.support.database import database_url, execute
from tests.support.factories import subscription

QUEUE = "topic"
SHORT_TURNS = "import delivery.limits as limits; limits.TURN_SECONDS, limits.SWEEP_SECONDS = 1.0, 600.0"
"""A sweep between a release and the next link would begin another chain."""
Event = dict[str, Any]


@contextlib.contextmanager
def celery_worker(
    name: str, queues: Iterable[str], *, before: str = "pass", log: Path = Path(os.devnull)
) -> "Iterator[subprocess.Popen[bytes]]":
    """Start a worker that consumes these queues, with the default pool; stop it at the end.

    It runs the Python code `before` first, and writes everything that it logs into `log`.
    """
    program = f"{before}\nfrom celery.__main__ import main\nmain()"
    arguments = ("-A", PROJECT, "worker", "--without-mingle", "--without-gossip", "-l", "DEBUG", "-n", name)
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments, "-Q", ",".join(queues)],
            env=os.environ
            | {"DATABASE_URL": database_url(), "REDIS_URL": settings.REDIS_URL, "BROKER_WORKER_NAME": name},
            cwd=ROOT,
            stdout=output,
            stderr=output,
        )
        try:
            yield process
        finally:
            process.terminate()
            process.wait(PATIENCE_SECONDS)


class Events(threading.Thread):
    """Collects what Celery says of its tasks."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[Event] = []
        self._receiver: Any = None

    def run(self) -> None:
        with app.connection_for_read() as broker:
            self._receiver = app.events.Receiver(broker, handlers={"*": self.seen.append})
            self._receiver.capture(limit=None, timeout=None, wakeup=False)

    def stop(self) -> None:
        self._receiver.should_stop = True
        self.join()

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.seen if event["type"] == kind]


@pytest.fixture
def events(storage: None) -> Iterator[Events]:
    collecting = Events()
    collecting.start()
    yield collecting
    collecting.stop()


@pytest.fixture
def log(tmp_path: Path, events: Events) -> Iterator[Path]:
    """Return what a real worker process logs, whose turns are short, on this test's database and Redis."""
    path = tmp_path / "log"
    with celery_worker("turns", [QUEUE], before=SHORT_TURNS, log=path):
        wait_until(lambda: events.of("worker-online"))
        yield path


def answers_after(seconds: float) -> Behaviour:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(seconds)
        return await raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", keep=True)(reader, writer)

    return answers


@pytest.mark.behaviour("4.14")
def test_turns_of_a_line_are_a_chain_however_slow_it_is(receiver: Receiver, events: Events, log: Path) -> None:
    fast, slow = (subscription(endpoint=receiver.url(path)) for path in ("/fast", "/slow"))
    receiver.on("/fast", answers_after(0.005))
    receiver.on("/slow", answers_after(0.3))
    bodies = {"/fast": publish_numbered(fast.event_type, 500), "/slow": publish_numbered(slow.event_type, 14)}
    wait_until_done(4 * PATIENCE_SECONDS)
    for path, wanted in (("/fast", fast), ("/slow", slow)):
        assert (receiver.bodies(path), receiver.max_at_once[path]) == (bodies[path], 1)
        line_id = line_of(wanted.subscriber).pk
        wait_until(lambda: len(links_of(line_id, events)) >= 3)  # noqa: B023 - called at once
        links = links_of(line_id, events)
        assert {link["root_id"] for link in links} == {links[0]["parent_id"]}
        for (link, following), released in zip(itertools.pairwise(links), releases_of(line_id, log)[1:], strict=False):
            assert following["parent_id"] == link["uuid"]
            assert released <= following["timestamp"]
        assert releases_of(line_id, log)[0] <= links[0]["timestamp"]
    assert events.of("task-failed") == []


@pytest.mark.behaviour("4.14")
def test_a_turn_is_named_for_its_lane_and_its_result_says_what_it_did(receiver: Receiver, events: Events) -> None:
    lanes = ("topic", "queue.0", "queue.1", "callbacks")
    with celery_worker("lanes", lanes, before="import delivery.limits as limits; limits.SWEEP_SECONDS = 600.0"):
        wait_until(lambda: events.of("worker-online"))
        topic = factories.subscription(endpoint=receiver.url("/topic"))
        receiver.on("/topic", *[answer(404)] * 2, answer(500), answer())
        broken = factories.subscription(event_type=topic.event_type, script="throw 1")
        jobs = factories.event_type(kind=EventKind.QUEUE)
        factories.subscription(event_type=jobs, endpoint=receiver.url("/jobs"))
        for event_type in (topic.event_type, jobs):
            publish_numbered(event_type, 5)
        wait_until(lambda: Delivery.objects.filter(status="DELIVERED").count() == 4, saying=lambda: events.seen)
        wait_until(lambda: not unfinished(events), saying=lambda: events.seen)
        assert Delivery.objects.filter(subscription=broken, status="HELD").count() == 5
    done = {lane: results(events, lane) for lane in lanes}
    assert done == {
        "topic": {"line": 2, "delivered": 2, "rejected": 2, "to be retried": 1, "held": 5},
        "queue.0": {"line": 1, "delivered": 1},
        "queue.1": {"line": 1, "delivered": 1},
        "callbacks": {},
    }


def unfinished(events: Events) -> set[str]:
    """Return the tasks of which Celery has not said that they have succeeded."""
    received, succeeded = (events.of(f"task-{kind}") for kind in ("received", "succeeded"))
    return {event["uuid"] for event in received} - {event["uuid"] for event in succeeded}


def results(events: Events, lane: str) -> Counter[str]:
    """Return the sum of what the turns of a lane say that they have done."""
    names = {event["uuid"]: event["name"] for event in events.of("task-received")}
    done: Counter[str] = Counter()
    for event in events.of("task-succeeded"):
        if names[event["uuid"]] == notify.TURN + lane:
            *counts, seconds = event["result"].split(", ")
            assert seconds == f"{event['runtime']:.1f} s"
            done.update({what.rstrip("s"): int(number) for number, what in (count.split(" ", 1) for count in counts)})
    return done


def links_of(line_id: int, events: Events) -> list[Event]:
    """Return the turns that were sent for this line, after the one that it was woken for."""
    received = [event for event in events.of("task-received") if event["name"] == notify.TURN + QUEUE]
    # Two lines whose turns end at the same moment share a link.
    return [event for event in received if re.search(rf"\[(\d+, )*{line_id}(, \d+)*\]", event["args"])]


def releases_of(line_id: int, log: Path) -> list[float]:
    """Return when the worker released the line and had more of it to send."""
    entries = [json.loads(line) for line in log.read_text().splitlines() if '"line.released"' in line]
    released = [entry for entry in entries if entry["line_id"] == line_id and entry["has_more"]]
    return [datetime.fromisoformat(entry["timestamp"]).timestamp() for entry in released]


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
    execute(NOTE_CLAIMS)
    yield
    execute("DROP FUNCTION note_claim CASCADE; DROP TABLE claims")


def claimed() -> dict[str, set[str]]:
    """Return the queues whose lines each worker has claimed."""
    queues: dict[str, set[str]] = defaultdict(set)
    for worker, queue in rows("SELECT worker, queue FROM claims"):
        queues[worker].add(queue)
    return queues


def pools() -> Counter[str]:
    """Return the kinds of pool of the workers that answer."""
    answers: dict[str, Any] = app.control.inspect(timeout=2.0).stats() or {}
    return Counter(stats["pool"]["implementation"] for stats in answers.values())


@pytest.mark.lengthy
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
    ended = Delivery.objects.filter(subscription__event_type=jobs).values_list("status", flat=True)
    assert Counter(ended) == dict.fromkeys(("DELIVERED", "REDUNDANT"), (TIMES + 1) * JOBS)
