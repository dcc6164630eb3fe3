"""Further workers and beats beside those of a running broker, as on a second machine."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from broker_project.stack.services import Application
from tests.real_broker import Broker

SECOND = "second"
"""What tells the further processes from those of the broker."""


@contextmanager
def more_workers(broker: Broker) -> Iterator[None]:
    """Run as many workers again inside, under other names."""
    numbers = range(1, (os.cpu_count() or 1) + 1)
    workers = [_installation(broker, SECOND).worker(number) for number in numbers]
    with broker.stack.supervisor.meanwhile(*(replace(worker, name=f"{worker.name}-{SECOND}") for worker in workers)):
        yield


@contextmanager
def more_beats(broker: Broker, count: int) -> Iterator[None]:
    """Run so many beats more inside."""
    names = [f"beat-{number + 1}-{SECOND}" for number in range(count)]
    beats = [replace(_installation(broker, name).beat(), name=name) for name in names]
    with broker.stack.supervisor.meanwhile(*beats):
        yield


def _installation(broker: Broker, name: str) -> Application:
    return Application(broker.stack.environment, 0, 0, "", name)
