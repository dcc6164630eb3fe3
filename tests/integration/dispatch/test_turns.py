"""A run is a chain of turns, on real Celery (contract 4.14)."""

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from broker_project.celery import app
from broker_project.stack.load.receiver import Behaviour, Receiver, raw
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch import notify
from tests.support.broker import line_of, publish_numbered, wait_until_done
from tests.support.celery_worker import celery_worker
from tests.support.factories import subscription

QUEUE = "topic"
SHORT_TURNS = "import delivery.limits as limits; limits.TURN_SECONDS = 1.0"
Event = dict[str, Any]


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
def test_turns_of_a_line_are_a_chain_however_slow_its_endpoint_is(
    receiver: Receiver, events: Events, log: Path
) -> None:
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


def links_of(line_id: int, events: Events) -> list[Event]:
    """Return the turns that were sent for this line, after the one that it was woken for."""
    received = [event for event in events.of("task-received") if event["name"] == notify.TURN]
    return [event for event in received if f"[{line_id}]" in event["args"]]


def releases_of(line_id: int, log: Path) -> list[float]:
    """Return when the worker released the line and had more of it to send."""
    entries = [json.loads(line) for line in log.read_text().splitlines() if '"line.released"' in line]
    released = [entry for entry in entries if entry["line_id"] == line_id and entry["has_more"]]
    return [datetime.fromisoformat(entry["timestamp"]).timestamp() for entry in released]
