"""One consumer: fetches some messages, works them off one by one, and fetches again when all of them are answered."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import requests

from broker_client.clock import now
from broker_client.in_flight import Hand
from broker_client.keepers import FIRST_PAUSE, pause_after
from broker_client.mailbox import Mailbox
from broker_client.message import Message
from broker_client.pauses import Pauses, rest_of_nothing
from broker_client.problems import Refused
from broker_client.schedule import Word

log = logging.getLogger(__name__)

FIRST_REST: Final = 0.1
LONGEST_REST: Final = 5.0
"""After a message that was not done: it is the oldest again, and comes back first."""

MOST_MESSAGES: Final = 100
LONGEST_WAIT: Final = 20
"""What the broker allows."""

Handler = Callable[[Message], object]
"""Works on one message; the message is done when it returns, and goes back to the mailbox when it raises."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How to fetch; ValueError where the broker would not have it."""

    most: int
    """Messages in hand."""

    wait: float
    """Seconds that the broker is asked to wait for some."""

    def __post_init__(self) -> None:
        _check("most", self.most, 1, MOST_MESSAGES)
        _check("wait", self.wait, 0, LONGEST_WAIT)


class Worker:
    """Works messages off in order."""

    def __init__(self, mailbox: Mailbox, handler: Handler, terms: Terms, hand: Hand) -> None:
        self._mailbox = mailbox
        self._handler = handler
        self._terms = terms
        self._hand = hand
        self._pauses = Pauses(FIRST_PAUSE)
        self._rests = Pauses(FIRST_REST, LONGEST_REST)

    def run(self) -> None:
        """Work until the hand is closed; raise `Refused` where trying again is of no use."""
        while not self._hand.is_closed:
            self._hand.take(self._fetched())
            while message := self._hand.begin():
                self._work_on(message)
            self._hand.wait_until_answered()

    def _fetched(self) -> Sequence[Message]:
        """Fetch; where nothing can be fetched, wait as long as is right before the next time."""
        asked_at = now()
        try:
            fetched = self._mailbox.next(most=self._terms.most, wait=self._terms.wait)
        except (requests.RequestException, Refused) as problem:
            self._hand.rest(pause_after(problem, self._pauses))
            return []
        self._pauses.reset()
        if not fetched.messages:
            self._hand.rest(rest_of_nothing(now() - asked_at, fetched.retry_after))
        return fetched.messages

    def _work_on(self, message: Message) -> None:
        word = Word.NACK
        try:
            self._handler(message)
            word = Word.ACK
        except Exception:
            log.exception("mailbox.not_done id=%s redeliveries=%s", message.id, message.redeliveries)
        finally:
            self._hand.say(message, word)
        if word is Word.ACK:
            self._rests.reset()
        else:
            self._hand.rest(self._rests.next())


def _check(name: str, value: float, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}, and may be from {least} to {most}.")
