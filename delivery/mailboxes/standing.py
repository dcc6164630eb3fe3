"""How mailboxes stand (behaviour 9.5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

COUNTED_AT_MOST: Final = 10_000
"""Messages are counted no further: a million in a mailbox must cost no more to look at."""


@dataclass(frozen=True, slots=True)
class MailboxStanding:
    """What is in a mailbox, each number counted to `COUNTED_AT_MOST`."""

    available: int
    """There for the next who asks."""
    in_flight: int
    waiting: int
    """HELD, delayed, or of subscriptions that are paused or INACTIVE."""
    redelivered: int
    """Unfinished, and handed out more than once, or returned."""
    expired: int
    """EXPIRED, among the newest that ended otherwise than acknowledged."""
    oldest_published_at: datetime | None
    """When the oldest of the available was published; None: there is none."""
    oldest_age_seconds: float | None
    """How long ago that was."""


def mailboxes_of(subscriber_ids: Sequence[int]) -> dict[int, MailboxStanding]:
    """Return how each subscriber's mailbox stands; one without PULL subscriptions has an empty one."""
    raise NotImplementedError
