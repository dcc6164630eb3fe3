"""A sample reader of the archive's mailbox, in a process of its own: writes down everything that it is handed.

Run as a module with the broker's address, the subscriber's name, the reader's own name, the path of its log and of the
key's token.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

from broker_client import Mailbox, MailboxReader, Message
from broker_project.stack.demo.events import ARCHIVING_SECONDS, KILLED, KILLED_AFTER, fingerprint, is_archived
from broker_project.stack.demo.records import Request, line

DONE, NOT_DONE = 200, 500
"""What a receiver would have answered."""


class NotArchived(Exception):
    """An event has to be tried again."""


class Reader:
    """One process of the application: archives what it is handed, and now and then does not."""

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._log = log
        self._has_died = log.with_suffix(".killed")
        self._left_to_live = KILLED_AFTER if name == KILLED and not self._has_died.exists() else -1

    def __call__(self, message: Message) -> None:
        """Archive an event."""
        at, number = time.monotonic(), message.json()["number"]
        if self._left_to_live == 0:
            self._die()
        self._left_to_live -= 1
        time.sleep(ARCHIVING_SECONDS)
        is_done = is_archived(number, message.redeliveries)
        self._write_down(
            Request(
                subscriber=self._name,
                path=f"/{message.event_type}",
                webhook_id=message.id,
                sequence="",
                attempt=str(message.redeliveries + 1),
                possible_duplicate="true" if message.possible_duplicate else "",
                signed=True,
                number=number,
                fingerprint=fingerprint(message.body),
                at=at,
                answer=DONE if is_done else NOT_DONE,
            )
        )
        if not is_done:
            raise NotArchived(f"{message.id} at the first time")

    def _write_down(self, request: Request) -> None:
        with self._log.open("a") as log:
            log.write(line(request))

    def _die(self) -> None:
        """End at once, as by a fault of power; the next process of this name lives on."""
        self._has_died.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def main(web: str, subscriber: str, name: str, log: str, token: str) -> None:
    """Read until told to stop."""
    key = json.loads(Path(token).read_text())
    reader = MailboxReader(Mailbox(web, subscriber, key), Reader(name, Path(log)))
    signal.signal(signal.SIGTERM, lambda *_: reader.stop())
    reader.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
