"""Clients of a mailbox, well-behaved or not, in this process or in one of their own."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import requests

from broker_client import BrokerError, Mailbox, Message, ReceiptResult
from broker_project.stack.application import python
from broker_project.stack.folders import ROOT
from broker_project.stack.load.exchanges import number_in, read_log, write_log
from broker_project.stack.load.wait import wait_until
from tests.support.faults.endpoints import body_of
from tests.support.faults.mailbox_figures import FetchRecord, Record, RequestRecord, ResponseRecord

AGAIN_SECONDS = 0.1
"""After which a call is repeated that was not answered, or with an error that passes."""

WORK_SECONDS = 0.5
LATE = 1.3
"""Times the time-out."""


class Client(threading.Thread):
    """Fetches until stopped, and treats the messages as its behaviour says."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox,
        behaviour: "ClientBehaviour",
        write: Callable[[Record], object],
        ack_seconds: int,
        *,
        most: int = 10,
        wait: float = 1.0,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self.enough = threading.Event()
        self.refused: list[int] = []
        self.ack_seconds = ack_seconds
        self._mailbox = mailbox
        self._behaviour = behaviour
        self._write = write
        self._most = most
        self._wait = wait

    def run(self) -> None:
        while not self.enough.is_set():
            try:
                messages = self.fetch()
            except (requests.RequestException, BrokerError) as problem:
                self._note(problem)
                self.enough.wait(AGAIN_SECONDS)
            else:
                self._behaviour(self, [message.receipt for message in messages])

    def fetch(self) -> Sequence[Message]:
        """Fetch once."""
        messages = self._mailbox.fetch(max_messages=self._most, wait_seconds=self._wait).messages
        for message in messages:
            self._write(self._handed(message))
        return messages

    def receipts(self) -> list[str]:
        """Fetch once; return what was got by its receipts."""
        return [message.receipt for message in self.fetch()]

    def some_receipts(self) -> list[str]:
        """Fetch until there is something."""
        found: list[str] = []
        wait_until(lambda: found.extend(self.receipts()) or found)  # type: ignore[func-returns-value]
        return found

    def say(self, word: str, receipts: Sequence[str]) -> list[ReceiptResult]:
        """Send `word` (ack, nack or extend) for receipts until there is an answer."""
        for receipt in receipts:
            self._write(RequestRecord(receipt, word, time.time()))
        while receipts:
            asked_at = time.time()
            try:
                results: list[ReceiptResult] = getattr(self._mailbox, word)(receipts)
            except (requests.RequestException, BrokerError) as problem:
                self._note(problem)
                time.sleep(AGAIN_SECONDS)
                continue
            for result in results:
                self._write(said(word, result, asked_at))
            return results
        return []

    def _note(self, problem: requests.RequestException | BrokerError) -> None:
        if isinstance(problem, BrokerError):
            self.refused.append(problem.status)
            if not problem.is_transient:
                raise problem

    def _handed(self, message: Message) -> FetchRecord:
        until = message.in_flight_until.timestamp()
        number = number_in(message.body)
        return FetchRecord(
            receipt=message.receipt,
            client=self.name,
            number=number,
            webhook_id=message.id,
            redeliveries=message.redeliveries,
            flagged=message.possible_duplicate,
            altered=message.body != body_of(number),
            begun=until - self.ack_seconds,
            until=until,
        )


ClientBehaviour = Callable[[Client, Sequence[str]], object]
"""What a client does with the receipts of one fetch."""


def said(word: str, result: ReceiptResult, asked_at: float) -> ResponseRecord:
    until = result.in_flight_until.timestamp() if result.in_flight_until else 0.0
    return ResponseRecord(result.receipt, word, result.status, result.code, asked_at, time.time(), until)


def acknowledge(client: Client, receipts: Sequence[str]) -> None:
    """Do as one should."""
    client.say("ack", receipts)


def work_slowly(client: Client, receipts: Sequence[str]) -> None:
    """Do as one should, but have them in hand for a while."""
    client.enough.wait(WORK_SECONDS if receipts else 0)
    client.say("ack", receipts)


def never_acknowledge(client: Client, receipts: Sequence[str]) -> None:
    """Keep them until the time is over, and longer."""
    if receipts:
        client.enough.wait(client.ack_seconds * LATE)


def acknowledge_late(client: Client, receipts: Sequence[str]) -> None:
    """Acknowledge when the time is over."""
    never_acknowledge(client, receipts)
    client.say("ack", receipts)


def give_back_some(client: Client, receipts: Sequence[str]) -> None:
    """Extend them all, return every other one, acknowledge the rest."""
    client.say("extend", receipts)
    client.say("nack", receipts[1::2])
    client.say("ack", receipts[::2])


def started(web: str, subscriber: str, token: str, name: str, path: Path, ack_seconds: int) -> subprocess.Popen[bytes]:
    """Let it fetch from now on."""
    arguments = (web, subscriber, token, name, str(path), str(ack_seconds))
    return subprocess.Popen(python(__name__, *arguments), cwd=ROOT)


def read(path: Path) -> list[Record]:
    """Return what a client in a process of its own has logged."""
    return [_record(fields) for fields in read_log(path)]


def _record(fields: dict[str, Any]) -> Record:
    kind = FetchRecord if "number" in fields else ResponseRecord if "status" in fields else RequestRecord
    return kind(**fields)


def main(web: str, subscriber: str, token: str, name: str, path: str, ack_seconds: str) -> None:
    def write(record: Record) -> None:
        write_log(Path(path), [record])

    Client(name, Mailbox(web, subscriber, token), work_slowly, write, int(ack_seconds)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
