"""A sample reader of the archive's mailbox, in its own process: it logs everything that it fetches.

Run as a module with the broker's address, the subscriber's name, the path of its key, the reader's name and the path of
its log.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from broker_client import Mailbox, MailboxReader, Message
from broker_project.stack.demo.events import KILLED, is_sample
from broker_project.stack.load.exchanges import Exchange, number_in, write_log

ARCHIVED, NOT_ARCHIVED = 200, 500
"""What an endpoint would have answered."""
ARCHIVING_SECONDS: Final = 0.02
"""How long each event takes, so that others arrive meanwhile and are fetched together."""
KILLED_AFTER: Final = 100
"""Events that the reader archives before it is killed."""


class NotArchived(Exception):
    """An event has to be tried again."""


class Reader:
    """One process of the application: archives what it fetches, except some events the first time."""

    def __init__(self, name: str, log: Path) -> None:
        self._name = name
        self._log = log
        self._has_died = log.with_suffix(".killed")
        self._left_to_live = KILLED_AFTER if name == KILLED and not self._has_died.exists() else -1

    def __call__(self, message: Message) -> None:
        """Archive an event."""
        at, number = time.monotonic(), number_in(message.body)
        if self._left_to_live == 0:  # as in a power failure; the next process of this name goes on
            self._has_died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        self._left_to_live -= 1
        time.sleep(ARCHIVING_SECONDS)
        is_archived = number % 50 != 0 or message.redeliveries > 0
        exchange = Exchange(
            number=number,
            webhook_id=message.id,
            sequence=0,
            flagged=message.possible_duplicate,
            altered=not is_sample(message.body),
            at=at,
            status=ARCHIVED if is_archived else NOT_ARCHIVED,
            message_id=message.message_id,
            attempt=message.redeliveries + 1,
            endpoint=self._name,
        )
        write_log(self._log, [exchange])
        if not is_archived:
            raise NotArchived(f"{message.id} the first time")


if __name__ == "__main__":
    web, subscriber, token, name, log = sys.argv[1:]
    reader = MailboxReader(Mailbox(web, subscriber, Path(token).read_text()), Reader(name, Path(log)))
    signal.signal(signal.SIGTERM, lambda *_: reader.stop())
    reader.run()
