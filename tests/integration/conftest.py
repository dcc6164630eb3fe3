"""A shop that publishes one event type, and a second connection to the database."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.test import Client

from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS
from delivery import retry
from delivery.http import futures
from delivery.maintenance import periodic
from delivery.models import Callback
from delivery.volatile import counters, send_once
from subscriptions.models import EventType, Publisher, Subscription
from tests.support import factories
from tests.support.api import EVENT, SYNC_PATH, client_of, client_of_admin, create_callback, job_type
from tests.support.database import another_connection


@pytest.fixture
def event_type(db: None) -> EventType:
    return factories.event_type(EVENT)


@pytest.fixture
def publisher(event_type: EventType) -> Publisher:
    return factories.publisher("shop")


@pytest.fixture
def client(publisher: Publisher) -> Client:
    return client_of(publisher)


@pytest.fixture
def management(db: None) -> Client:
    return client_of()


@pytest.fixture
def admin(db: None) -> Client:
    return client_of_admin()


@pytest.fixture
def job(publisher: Publisher) -> EventType:
    return job_type()


@pytest.fixture
def callback(client: Client, job: EventType) -> Callback:
    return create_callback(client)


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    """A subscription to an event type of its own, sent to the receiver."""
    return factories.subscription(endpoint=receiver.url("/a"))


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pauses five times as long, so that none is over before the test ends it.

    None is longer than any policy allows: that would be taken for the work of a clock that was ahead (contract 5.9).
    """
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 5.0)
    monkeypatch.setattr(retry, "MAX_PAUSE_SECONDS", retry.MAX_RETRY_AFTER_SECONDS)


@pytest.fixture
def volatile(storage: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let what is begun with volatile messages end with the test, however long it takes to write down its counts."""
    monkeypatch.setattr(send_once, "DRAIN_SECONDS", 0.0)
    for module in (futures, counters):
        monkeypatch.setattr(module, "STOP_SECONDS", PATIENCE_SECONDS)
    yield
    send_once.stop()


@pytest.fixture
def nobody_announces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what is to be announced as it was recorded."""
    monkeypatch.delitem(periodic.JOBS, "announce")


@pytest.fixture
def asked(event_type: EventType, receiver: Receiver) -> Subscription:
    """The subscription whose endpoint answers SYNC calls."""
    return factories.subscription(event_type=event_type, endpoint=receiver.url(SYNC_PATH))


@pytest.fixture
def elsewhere(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """Another connection to the test's database."""
    with another_connection() as other:
        other.autocommit = False
        yield other
