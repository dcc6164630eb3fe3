"""The client's reader at a played mailbox, with handlers that can be stopped."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from broker_client import Mailbox, MailboxReader, Message
from broker_client.reader import LONGEST_WAIT
from tests.played_mailbox import PlayedMailbox
from tests.playing_mailbox import NAME, TOKEN
from tests.receiver import PATIENCE

TIME_OUT = 4.0
"""Long enough that a busy machine lets nothing go, short enough to wait for what is extended."""


@dataclass(slots=True)
class Work:
    """A handler that can be stopped in the middle."""

    begun: list[int] = field(default_factory=list)
    started: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)

    def __call__(self, message: Message) -> None:
        self.begun.append(message.message_id)
        self.started.set()
        assert self.may_end.wait(PATIENCE)


@contextlib.contextmanager
def reading(
    played: PlayedMailbox, handler: Callable[[Message], object], *, most: int = 10, consumers: int = 1
) -> Iterator[MailboxReader]:
    """Read until the block ends; then stop, and wait for the end."""
    reader = MailboxReader(Mailbox(played.url, NAME, TOKEN), handler, most=most, wait=LONGEST_WAIT, consumers=consumers)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()
        played.end()
        reader.join()
