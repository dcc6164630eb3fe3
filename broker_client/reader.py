"""`MailboxReader`: consumers of a mailbox that give each message to a handler."""

import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from broker_client.consumers import Handler, Terms, Worker
from broker_client.in_flight import Hand
from broker_client.keepers import Keeper
from broker_client.mailbox import Mailbox
from broker_client.message import Message

log = logging.getLogger(__name__)

END_SECONDS: Final = 10.0
"""How long the last answers may take when the reader stops; what is not answered by then is handed out again."""


class MailboxReader:
    """Hands the messages of a mailbox to a handler, in `consumers` threads; each has up to `most` in hand.

    A message is acknowledged after the handler has returned, extended while it works, and returned when it raises.
    When the reader stops, what is being worked on is finished, and what was not begun is returned.
    """

    def __init__(
        self, mailbox: Mailbox, handler: Handler, *, most: int = 10, wait: float = 20, consumers: int = 1
    ) -> None:
        """Read nothing yet; `wait` is how many seconds the broker is asked to wait for messages.

        Raise ValueError unless `most` is from 1 to 100, `wait` from 0 to 20, and there is a consumer at least.
        """
        if consumers < 1:
            raise ValueError(f"consumers is {consumers}, and must be at least 1.")
        self._mailbox = mailbox
        self._handler = handler
        self._terms = Terms(most, wait)
        self._hands = [Hand() for _ in range(consumers)]
        self._ends: list[threading.Event] = []
        self._problems: list[BaseException] = []

    def run(self) -> None:
        """Read until somebody calls `stop`, or Ctrl-C is pressed; raise what `join` raises.

        Ctrl-C is raised when all consumers have ended; pressed once more, at once.
        """
        try:
            self.start()
            self._wait()
        finally:
            self.stop()
            self._wait()
        self.join()

    def start(self) -> None:
        """Begin to read; raise RuntimeError if it has begun already: a reader reads once."""
        if self._ends:
            raise RuntimeError("A reader reads once.")
        for hand in self._hands:
            ended = threading.Event()
            threading.Thread(target=self._consume, args=[hand, ended]).start()
            self._ends.append(ended)

    def stop(self) -> None:
        """Let every consumer finish what it works on; a call that waits for messages ends first, after `wait` seconds.

        May be called by anybody at any time, a handler of signals among them.
        """
        for hand in self._hands:
            hand.close()

    def join(self) -> None:
        """Wait until all consumers have ended; raise what has ended one of them unasked, as `Refused` with 401."""
        self._wait()
        if self._problems:
            raise self._problems[0]

    def holds(self, message: Message) -> bool:
        """Whether a message that the handler works on is surely nobody else's: what takes long may ask, and give up."""
        return any(hand.holds(message) for hand in self._hands)

    def _wait(self) -> None:
        """Wait for what the consumers say themselves: a thread is taken for ended once a wait for it is interrupted."""
        for ended in self._ends:
            ended.wait()

    def _consume(self, hand: Hand, ended: threading.Event) -> None:
        try:
            self._noted(partial(self._work, hand), self.stop)
        finally:
            ended.set()

    def _work(self, hand: Hand) -> None:
        """Be one consumer: a worker, and a keeper beside it. If one of them ends, all consumers do."""
        keeper = threading.Thread(target=self._noted, args=[Keeper(self._mailbox, hand).run, hand.abandon])
        keeper.start()
        try:
            Worker(self._mailbox, self._handler, self._terms, hand).run()
        finally:
            self.stop()
            if not hand.abandon(END_SECONDS):
                log.warning("mailbox.not_answered")
            keeper.join()

    def _noted(self, act: Callable[[], None], at_the_end: Callable[[], object]) -> None:
        """Act in a thread of its own; note what it raises, `SystemExit` too, for whoever waits."""
        try:
            act()
        except BaseException as problem:
            log.exception("mailbox.ended")
            self._problems.append(problem)
        finally:
            at_the_end()
            self._mailbox.close()
