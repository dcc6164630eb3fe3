"""Publishers to a mailbox and clients of it, around a broker."""

import contextlib
import itertools
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker_client import Mailbox
from broker_project.stack.load.publisher import Publisher
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS
from tests.support.faults.audit import DROPPED
from tests.support.faults.endpoints import Endpoint
from tests.support.faults.figures import Figures
from tests.support.faults.load import PUBLISH_EVERY_SECONDS, OneTypeLoad, publisher_of
from tests.support.faults.mailbox_clients import Client, ClientBehaviour, read, started
from tests.support.faults.mailbox_figures import FetchRecord, Record, ResponseRecord, by_the_clock, figures_of_mailbox
from tests.support.real_broker import Broker

BATCH = 5
ACK_SECONDS = 3
LONG = 600
"""Seconds to hold messages for that are not to time out."""


@dataclass(slots=True, kw_only=True)
class MailboxLoad(OneTypeLoad):
    """A mailbox with publishers and clients; its subscriber also has an endpoint, for when it is sent to."""

    subscriber: str
    token: str
    folder: Path
    endpoint: Endpoint
    ack_seconds: int = 0
    """The time-out."""
    clients: list[Client] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    """Events that expired unread, or were purged."""
    _records: list[Record] = field(default_factory=list)
    _logs: list[Path] = field(default_factory=list)

    def client(self, behaviour: ClientBehaviour, *, most: int = 10, wait: float = 1.0) -> Client:
        """Add a client that does nothing yet."""
        name, mailbox = f"client-{len(self.clients) + 1}", Mailbox(self.broker.web, self.subscriber, self.token)
        made = Client(name, mailbox, behaviour, self._records.append, self.ack_seconds, most=most, wait=wait)
        self.clients.append(made)
        return made

    def hold_for(self, seconds: int) -> None:
        """Let the time-out be this of what is handed out from now on."""
        self.broker.change(f"subscribers/{self.subscriber}", ack_seconds=seconds)
        self.ack_seconds = seconds

    def read_by(self, *behaviours: ClientBehaviour) -> None:
        """Let a client of each behaviour fetch from now on."""
        for behaviour in behaviours:
            self.client(behaviour).start()

    def start_process(self, name: str) -> None:
        """Let a client in a process of its own fetch from now on."""
        path = self.folder / f"{name}-{len(self._logs)}"
        path.touch()
        self._logs.append(path)
        where = (self.broker.web, self.subscriber, self.token)
        self.processes[name] = started(*where, name, path, self.ack_seconds)

    def records(self) -> list[Record]:
        """Return everything that clients have written down."""
        return [*self._records, *(record for path in self._logs for record in read(path))]

    def answers(self) -> int:
        """Return how much clients in this process have written down."""
        return len(self._records)

    def handed(self) -> list[FetchRecord]:
        return [one for one in self.records() if isinstance(one, FetchRecord)]

    def said(self, word: str) -> list[ResponseRecord]:
        return [one for one in self.records() if isinstance(one, ResponseRecord) and one.word == word]

    def stop_publishing(self, *odd: Client) -> None:
        """Stop publishing, and the odd clients."""
        threads: list[Publisher | Client] = [*self.publishers, *odd]
        for thread in threads:
            thread.enough.set()
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(PATIENCE_SECONDS)

    def stop(self, *odd: Client) -> None:
        """Stop publishing, and the odd clients; wait until everything is through, or has had time enough."""
        self.stop_publishing(*odd)
        self.wait_until_through()

    def read_records(self) -> None:
        """Read what the broker has recorded of the messages."""
        OneTypeLoad.read_records(self)
        self.look_for_dropped()

    def look_for_dropped(self) -> None:
        """Read in the books what the broker has ended."""
        self.dropped = {number for (number,) in self.broker.ask(DROPPED, event_type=self.event_type)}

    def end(self) -> None:
        """Stop publishers and clients, also those that wait for a message."""
        self.give_up()
        self.stop_publishing(*self.clients)
        for process in self.processes.values():
            process.kill()
            process.wait()

    def figures(self) -> Figures:
        """Return the figures of everything."""
        return figures_of_mailbox(
            self.published(),
            self.begun(),
            self.records(),
            sent=by_the_clock(self.endpoint.exchanges),
            winners=self.winners,
            dropped=self.dropped,
            unfinished=self.unfinished,
        )


@contextlib.contextmanager
def mailbox_loaded(
    broker: Broker, receiver: Receiver, folder: Path, *, every: float = PUBLISH_EVERY_SECONDS
) -> Iterator[MailboxLoad]:
    """Give a mailbox of one event type; leave no work for the next test."""
    event_type, numbers = broker.event_type("Test.Fetched"), itertools.count(1)
    name = broker.subscribe(receiver.url("/fetching"), event_type, delivery_mode="PULL").name
    token = broker.management.key("SUBSCRIBER", name)
    publishers = [publisher_of(broker, [event_type], numbers, size, every=every) for size in (1, BATCH)]
    box = MailboxLoad(
        broker=broker,
        event_type=event_type,
        publishers=publishers,
        subscriber=name,
        token=token,
        folder=folder,
        endpoint=Endpoint("fetching", receiver),
    )
    box.hold_for(ACK_SECONDS)
    try:
        yield box
    finally:
        box.end()
        broker.inactivate_all()
