"""The thread that speaks for a consumer: it extends what is worked on, acknowledges what is done, returns the rest."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Final

import requests

from broker_client.in_flight import Hand
from broker_client.mailbox import LONGEST_CALL, Mailbox
from broker_client.message import Result
from broker_client.pauses import LONGEST_PAUSE, Pauses
from broker_client.problems import Refused
from broker_client.schedule import Word

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.5


class Keeper:
    """Says what is due of a hand, again and again until it is answered: all of it can be said twice."""

    def __init__(self, mailbox: Mailbox, hand: Hand) -> None:
        self._hand = hand
        self._pauses = Pauses(FIRST_PAUSE)
        self._calls: Mapping[Word, Callable[..., list[Result]]] = {
            Word.ACK: mailbox.ack,
            Word.NACK: mailbox.nack,
            Word.NOT_ATTEMPTED: partial(mailbox.nack, not_attempted=True),
            Word.EXTEND: mailbox.extend,
        }

    def run(self) -> None:
        """Speak until the hand is closed and empty; raise `Refused` where trying again is of no use."""
        while (due := self._hand.due()) is not None:
            try:
                for word, receipts in due.items():
                    self._say(word, receipts)
            except (requests.RequestException, Refused) as problem:
                self._hand.pause(pause_after(problem, self._pauses, longest=self._hand.patience()))
            else:
                self._pauses.reset()

    def _say(self, word: Word, receipts: Sequence[str]) -> None:
        results = self._calls[word](receipts, within=min(LONGEST_CALL, self._hand.patience()))
        for message_id, code in self._hand.answered(word, results).items():
            log.warning("mailbox.not_ours id=%s word=%s code=%s", message_id, word, code)


def pause_after(problem: requests.RequestException | Refused, pauses: Pauses, *, longest: float = inf) -> float:
    """Return the seconds to wait before trying again, `LONGEST_PAUSE` at most; raise the problem if that is of no use.

    Never less than if nothing was asked for, unless there is less time: else whoever asks for nothing would be called
    in a loop.
    """
    wanted = 0.0
    if isinstance(problem, Refused):
        if not problem.passes:
            raise problem
        wanted = problem.retry_after or 0.0
    seconds = min(max(wanted, pauses.next()), longest, LONGEST_PAUSE)
    log.warning("mailbox.unavailable again_in=%.1f problem=%s", seconds, problem)
    return seconds
