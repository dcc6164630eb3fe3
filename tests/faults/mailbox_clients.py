"""Clients of a mailbox that behave well or badly, go on whatever breaks, and write everything down."""

import threading
import time
from collections.abc import Callable, Sequence

import requests

from broker_client import Mailbox, Message, Refused, Result
from tests.faults.endpoints import body_of, number_in
from tests.faults.hand_outs import Asked, Handed, Record, Said
from tests.receiver import PATIENCE, wait_until

AGAIN_SECONDS = 0.1
"""After which a call is repeated that was not answered, or with an error that passes."""


class Client(threading.Thread):
    """Fetches until told that it is enough, and treats what it has got in its manner."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox,
        manner: "Manner",
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
        self._manner = manner
        self._write = write
        self._most = most
        self._wait = wait

    def run(self) -> None:
        while not self.enough.is_set():
            try:
                messages = self.fetch()
            except (requests.RequestException, Refused) as problem:
                self._note(problem)
                self.enough.wait(AGAIN_SECONDS)
            else:
                self._manner(self, [message.receipt for message in messages])

    def fetch(self) -> Sequence[Message]:
        """Fetch once."""
        messages = self._mailbox.next(most=self._most, wait=self._wait).messages
        for message in messages:
            self._write(self._handed(message))
        return messages

    def receipts(self) -> list[str]:
        """Fetch once; return what was got by its receipts."""
        return [message.receipt for message in self.fetch()]

    def some_receipts(self) -> list[str]:
        """Fetch until there is something."""
        found: list[str] = []
        wait_until(lambda: found.extend(self.receipts()) or found, PATIENCE)  # type: ignore[func-returns-value]
        return found

    def say(self, word: str, receipts: Sequence[str]) -> list[Result]:
        """Say something of receipts, again and again until there is an answer."""
        for receipt in receipts:
            self._write(Asked(receipt, word, time.time()))
        while receipts:
            asked_at = time.time()
            try:
                results: list[Result] = getattr(self._mailbox, word)(receipts)
            except (requests.RequestException, Refused) as problem:
                self._note(problem)
                time.sleep(AGAIN_SECONDS)
                continue
            for result in results:
                self._write(said(word, result, asked_at))
            return results
        return []

    def _note(self, problem: requests.RequestException | Refused) -> None:
        if isinstance(problem, Refused):
            self.refused.append(problem.status)
            if not problem.passes:
                raise problem

    def _handed(self, message: Message) -> Handed:
        until = message.in_flight_until.timestamp()
        number = number_in(message.body)
        return Handed(
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


Manner = Callable[[Client, Sequence[str]], object]
"""What a client does with the receipts of one fetch."""


def said(word: str, result: Result, asked_at: float) -> Said:
    until = result.in_flight_until.timestamp() if result.in_flight_until else 0.0
    return Said(result.receipt, word, result.status, result.code, asked_at, time.time(), until)
