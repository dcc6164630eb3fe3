"""A run is a chain of turns, on real Celery (contract 4.14)."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from broker_project.celery import app
from broker_project.stack.load.receiver import Receiver, raw
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch import notify
from tests.support.broker import publish_numbered, wait_until_done
from tests.support.celery_worker import celery_worker
from tests.support.factories import subscription

QUEUE = "topic"
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
def celery(events: Events) -> Iterator[None]:
    """A real worker process on this test's database and Redis."""
    with celery_worker("turns", [QUEUE]):
        wait_until(lambda: events.of("worker-online"))
        yield


async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer after a moment."""
    await asyncio.sleep(0.005)
    return await raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", keep=True)(reader, writer)


@pytest.mark.behaviour("4.14")
def test_turns_of_a_line_run_one_after_the_other(receiver: Receiver, events: Events, celery: None) -> None:
    wanted = subscription(endpoint=receiver.url("/a"))
    receiver.on("/a", slowly)
    bodies = publish_numbered(wanted.event_type, 1_000)  # for several turns of a second
    wait_until_done(4 * PATIENCE_SECONDS)
    assert receiver.bodies("/a") == bodies
    assert receiver.max_at_once["/a"] == 1
    links = chain_of(events, notify.TURN)
    assert len(links) >= 3
    wait_until(lambda: {link["uuid"] for link in links} <= {event["uuid"] for event in events.of("task-succeeded")})
    begun = {event["uuid"]: event["timestamp"] for event in events.of("task-started")}
    for link, following in itertools.pairwise(links):
        assert following["parent_id"] == link["uuid"]
        assert begun[following["uuid"]] >= begun[link["uuid"]]
    assert events.of("task-failed") == []


def chain_of(events: Events, name: str) -> list[Event]:
    """Return the longest chain of such tasks, link by link."""
    received = [event for event in events.of("task-received") if event["name"] == name]
    following = {event["parent_id"]: event for event in received if event["parent_id"]}
    chains = []
    for event in received:
        chain = [event]
        while chain[-1]["uuid"] in following:
            chain.append(following[chain[-1]["uuid"]])
        chains.append(chain)
    return max(chains, key=len, default=[])
