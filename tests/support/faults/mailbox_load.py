"""Publishers to a mailbox and clients of it, around a broker."""

import contextlib
import itertools
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from broker_client import Mailbox
from broker_project.stack.load.endpoint import Endpoint
from broker_project.stack.load.publisher import Publisher
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from tests.support.faults.audit import DROPPED
from tests.support.faults.figures import Figures
from tests.support.faults.load import PUBLISH_EVERY_SECONDS, THROUGH_SECONDS, WARM, begun_by, give_up_all, publisher_of
from tests.support.faults.mailbox_clients import Client, ClientBehaviour, read, started
from tests.support.faults.mailbox_figures import Handed, Record, Said, by_the_clock, figures_of_mailbox
from tests.support.faults.queue_load import OPEN, WINNERS
from tests.support.real_broker import Broker

BATCH = 5
ACK_SECONDS = 3
LONG = 600
"""Seconds to hold messages for that are not to time out."""


@dataclass(slots=True)
class MailboxLoad:
    """A mailbox with publishers and clients; its subscriber has an endpoint too, for when it is sent to."""

    broker: Broker
    event_type: str
    subscriber: str
    token: str
    folder: Path
    endpoint: Endpoint
    publishers: list[Publisher]
    ack_seconds: int = 0
    """The time-out."""
    clients: list[Client] = field(default_factory=list)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    unfinished: int = 0
    """Deliveries that the broker still had to do when time was up."""
    winners: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    """Events that were unread for too long, or purged."""
    _records: list[Record] = field(default_factory=list)
    _logs: list[Path] = field(default_factory=list)

    def start(self) -> None:
        """Publish from now on; return when messages come."""
        for publisher in self.publishers:
            publisher.start()
        self.wait_for(WARM)

    def client(self, manner: ClientBehaviour, *, most: int = 10, wait: float = 1.0) -> Client:
        """Add a client that does nothing yet."""
        name, mailbox = f"client-{len(self.clients) + 1}", Mailbox(self.broker.web, self.subscriber, self.token)
        made = Client(name, mailbox, manner, self._records.append, self.ack_seconds, most=most, wait=wait)
        self.clients.append(made)
        return made

    def hold_for(self, seconds: int) -> None:
        """Let the time-out be this of what is handed out from now on."""
        self.broker.change(f"subscribers/{self.subscriber}", ack_seconds=seconds)
        self.ack_seconds = seconds

    def read_by(self, *manners: ClientBehaviour) -> None:
        """Let a client of each manner fetch from now on."""
        for manner in manners:
            self.client(manner).start()

    def start_process(self, name: str) -> None:
        """Let a client in a process of its own fetch from now on."""
        path = self.folder / f"{name}-{len(self._logs)}"
        path.touch()
        self._logs.append(path)
        where = (self.broker.web, self.subscriber, self.token)
        self.processes[name] = started(*where, name, path, self.ack_seconds)

    def acknowledged(self) -> list[int]:
        return [event.number for publisher in self.publishers for event in publisher.published]

    def wait_for(self, more: int) -> None:
        """Wait until so many more events have been acknowledged to their publishers."""
        wanted = len(self.acknowledged()) + more
        wait_until(lambda: len(self.acknowledged()) >= wanted, THROUGH_SECONDS)

    def records(self) -> list[Record]:
        """Return everything that clients have written down."""
        return [*self._records, *(record for path in self._logs for record in read(path))]

    def answers(self) -> int:
        """Return how much clients in this process have written down."""
        return len(self._records)

    def handed(self) -> list[Handed]:
        return [one for one in self.records() if isinstance(one, Handed)]

    def said(self, word: str) -> list[Said]:
        return [one for one in self.records() if isinstance(one, Said) and one.word == word]

    def stop_publishing(self, *odd: Client) -> None:
        """Stop publishing, and the odd clients."""
        threads: list[Publisher | Client] = [*self.publishers, *odd]
        for thread in threads:
            thread.enough.set()
        for thread in filter(threading.Thread.is_alive, threads):
            thread.join(THROUGH_SECONDS)

    def stop(self, *odd: Client) -> None:
        """Stop publishing, and the odd clients; wait until everything is through, or has had time enough."""
        self.stop_publishing(*odd)
        until = time.monotonic() + THROUGH_SECONDS
        while self.open() and time.monotonic() < until:
            time.sleep(0.05)
        self.read_books()

    def read_books(self) -> None:
        """Read what the broker says of the messages."""
        self.unfinished = self.open()
        self.winners = dict(self.broker.ask(WINNERS, event_type=self.event_type))
        self.look_for_dropped()

    def look_for_dropped(self) -> None:
        """Read in the books what the broker has ended."""
        self.dropped = {number for (number,) in self.broker.ask(DROPPED, event_type=self.event_type)}

    def end(self) -> None:
        """Let nobody do anything any more, nor wait for a message."""
        give_up_all(self.publishers)
        self.stop_publishing(*self.clients)
        for process in self.processes.values():
            process.kill()
            process.wait()

    def figures(self) -> Figures:
        """Return what became of it all."""
        return figures_of_mailbox(
            self.acknowledged(),
            begun_by(self.publishers),
            self.records(),
            sent=by_the_clock(self.endpoint.exchanges),
            winners=self.winners,
            dropped=self.dropped,
            unfinished=self.unfinished,
        )

    def open(self) -> int:
        """Return how many deliveries have not ended."""
        ((count,),) = self.broker.ask(OPEN, event_type=self.event_type)
        return int(count)


@contextlib.contextmanager
def mailbox_loaded(
    broker: Broker, receiver: Receiver, folder: Path, *, every: float = PUBLISH_EVERY_SECONDS
) -> Iterator[MailboxLoad]:
    """Give a mailbox of one event type; leave no work for the next test."""
    event_type, numbers = broker.event_type("Test.Fetched"), itertools.count(1)
    name = broker.subscribe(receiver.url("/fetching"), event_type, delivery_mode="PULL").name
    token = broker.management.key("SUBSCRIBER", name)
    publishers = [publisher_of(broker, [event_type], numbers, size, every=every) for size in (1, BATCH)]
    box = MailboxLoad(broker, event_type, name, token, folder, Endpoint("fetching", receiver), publishers)
    box.hold_for(ACK_SECONDS)
    try:
        yield box
    finally:
        box.end()
        broker.inactivate_all()
