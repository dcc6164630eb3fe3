"""Giving a mailbox with publishers, and leaving nothing behind."""

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from tests.faults.endpoints import Endpoint
from tests.faults.mailbox_load import Box
from tests.faults.publishers import PUBLISH_EVERY, Publisher
from tests.real_broker import Broker
from tests.receiver import Receiver

BATCH = 5
ACK_SECONDS = 3
LONG = 600
"""Seconds to hold messages for that are not to time out."""


@contextlib.contextmanager
def mailbox_loaded(broker: Broker, receiver: Receiver, folder: Path, *, every: float = PUBLISH_EVERY) -> Iterator[Box]:
    """Give a mailbox of one event type; leave no work for the next test."""
    event_type, numbers = broker.event_type("Test.Fetched"), itertools.count(1)
    name = broker.subscribe(receiver.url("/fetching"), event_type, delivery_mode="PULL").name
    token = broker.management.create("api-keys", kind="SUBSCRIBER", subscriber=name, label="test")["token"]
    publishers = [Publisher(broker, [event_type], numbers, size, every=every) for size in (1, BATCH)]
    box = Box(broker, event_type, name, token, folder, Endpoint("fetching", receiver), publishers)
    box.hold_for(ACK_SECONDS)
    try:
        yield box
    finally:
        box.end()
        broker.inactivate_all()
