"""Rules of what is to be said of the messages in hand, and when. Moments are those of `clocks.now`."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Final

from broker_client.message import Message

COLLECT_SECONDS: Final = 0.05
"""How long what is known may wait for more, to be said in one call."""

MAX_COLLECTED: Final = 100

MIN_PATIENCE: Final = 1.0
"""Seconds: whoever answers as slowly as that is heard, however little time is left."""


class Word(StrEnum):
    """What is said of a message."""

    EXTEND = "extend"
    """It is being worked on, or will be."""

    ACK = "ack"
    """It is done."""

    NACK = "nack"
    """It is not: somebody else may have it."""

    NOT_ATTEMPTED = "not_attempted"
    """Nobody has begun it: somebody else may have it, and this hand-out was no try."""


@dataclass(slots=True)
class Held:
    """One message in hand."""

    message: Message
    until: float
    """Ours so long."""

    extend_at: float
    is_begun: bool = False
    is_lost: bool = False
    """Whether the broker has refused to extend it: it is somebody else's, or may be any moment."""

    word: Word | None = None
    """What is to be said of it at the end, once that is known."""

    known_at: float = 0.0

    @classmethod
    def since(cls, now: float, message: Message) -> "Held":
        """Return a message that was fetched just now."""
        return cls(message, *times(now, message.held_until))

    @property
    def is_waiting(self) -> bool:
        """Whether it may be begun."""
        return not self.is_begun and not self.word

    @property
    def may_be_done(self) -> bool:
        """Whether it has been worked on, or is: to say so counts unless somebody else has got it since."""
        return self.is_begun and self.word in {None, Word.ACK}


def times(now: float, until: float) -> tuple[float, float]:
    """Return until when a message is ours, and when to extend that: when a third of what is left is over."""
    return until, now + (until - now) / 3


def dues(hand: Collection[Held], now: float) -> dict[Word, list[str]]:
    """Return what is to be said now of which receipts, the most urgent first.

    What is known is said at once where there is no more to wait for.
    """
    known = [(held.word, held) for held in hand if held.word]
    going_on = [held for held in hand if not held.word]
    kept = [held for held in going_on if not held.is_lost]
    found: dict[Word, list[str]] = {}
    if any(held.extend_at <= now for held in kept):
        found[Word.EXTEND] = [held.message.receipt for held in kept]
    if not going_on or len(known) >= MAX_COLLECTED or any(_collected_at(held) <= now for _, held in known):
        for word, held in known:
            found.setdefault(word, []).append(held.message.receipt)
    return found


def next_due(hand: Collection[Held]) -> float | None:
    """Return the moment from which on something is to be said, unless the hand changes; None: never."""
    moments = (_collected_at(held) if held.word else held.extend_at for held in hand if held.word or not held.is_lost)
    return min(moments, default=None)


def patience(hand: Collection[Held], now: float) -> float:
    """Return for how many seconds a call may go without an answer, or a pause may last, while all of this is in hand.

    A third of what is left of the message that is over first: so there are two more tries at least, and mostly more.
    """
    left = min((held.until - now for held in hand if held.until > now and not held.is_lost), default=inf)
    return max(left / 3, MIN_PATIENCE)


def _collected_at(held: Held) -> float:
    return held.known_at + COLLECT_SECONDS
