"""What those who fetch are to do, and what has come of it."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from benchmarks.receipts import Receipts


@dataclass(frozen=True, slots=True)
class Errand:
    """Whose mailbox is fetched from, and how."""

    web: str
    token: str
    mailbox: str
    consumers: int
    most: int
    """Messages in one call."""
    wait: float
    """Seconds that the broker is asked to wait for a message."""
    again: int | None = None
    """The stream of messages that others had until their time was over: these alone say that they come again, once."""


def _seconds() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class Taken:
    """What came since the last report."""

    receipts: Receipts = field(default_factory=Receipts)
    fetched: "array[float]" = field(default_factory=_seconds)
    """How long each call took that brought something; where it may wait, most of it is waiting."""
    in_vain: "array[float]" = field(default_factory=_seconds)
    """How long each call took that brought nothing, though it had a place to wait in."""
    others: "array[int]" = field(default_factory=lambda: array("q"))
    """At each call that brought something: how many others were under way."""
    acknowledged: "array[float]" = field(default_factory=_seconds)
    turned_away: "array[float]" = field(default_factory=_seconds)
    """How long it took to hear that there is no place to wait in."""
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    """What should not have been answered so, since the beginning."""
