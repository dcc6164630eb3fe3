"""Rules of what is to be said of the messages in hand, and when. Moments are those of the monotonic clock."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from broker_client.messages import Message

COLLECT_SECONDS: Final = 0.05
"""How long what is known may wait for more, to be said in one call."""

MOST_COLLECTED: Final = 100


class Word(StrEnum):
    """What is said of a message."""

    EXTEND = "extend"
    """It is being worked on, or will be."""

    ACK = "ack"
    """It is done."""

    NACK = "nack"
    """It is not: somebody else may have it."""


@dataclass(slots=True)
class Held:
    """One message in hand."""

    message: Message
    until: float
    """Ours so long."""

    extend_at: float
    is_begun: bool = False
    word: Word | None = None
    """What is to be said of it at the end, once that is known."""

    known_at: float = 0.0

    @classmethod
    def since(cls, now: float, message: Message) -> "Held":
        """Return a message that was fetched just now."""
        return cls(message, *times(now, message.held_seconds))


def times(now: float, held_seconds: float) -> tuple[float, float]:
    """Return until when a message is ours, and when to extend that: twice more, if once were in vain."""
    return now + held_seconds, now + held_seconds / 3


def dues(hand: Collection[Held], now: float) -> dict[Word, list[str]]:
    """Return what is to be said now of which receipts; at once where there is no more to wait for."""
    known = [held for held in hand if held.word]
    going_on = [held for held in hand if not held.word]
    is_collected = not going_on or len(known) >= MOST_COLLECTED or any(_collected_at(held) <= now for held in known)
    found: dict[Word, list[str]] = {}
    for held in hand:
        if held.word and is_collected:
            found.setdefault(held.word, []).append(held.message.receipt)
    if any(held.extend_at <= now for held in going_on):
        found[Word.EXTEND] = [held.message.receipt for held in going_on]
    return found


def next_due(hand: Collection[Held]) -> float | None:
    """Return the moment from which on something is to be said, unless the hand changes; None: never."""
    return min((_collected_at(held) if held.word else held.extend_at for held in hand), default=None)


def _collected_at(held: Held) -> float:
    return held.known_at + COLLECT_SECONDS
