"""Placing what was published: for whom it is, in which groups, and in whose lines (behaviour 2.1, 6.2, 6.3)."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from broker_project.core.db import rows
from delivery.publish.queue_groups import failure_of, groups_of
from subscriptions.matching import Match
from subscriptions.models import EventKind

SENDERS: Final = "SELECT id, queue FROM delivery_line WHERE sender < %s ORDER BY sender"
GIVE_SENDERS_LINES: Final = """
INSERT INTO delivery_line (lane, sender) SELECT 'queue', n FROM generate_series(0, %s::int - 1) AS n
ON CONFLICT (sender) DO NOTHING
"""

Placed = tuple[int, int, int, str, int]
"""One delivery: its message's place from 1 on, subscription, subscriber, why it is HELD, and its group's number.

Groups are numbered from 1 on through all messages; 0 is none.
"""


class OfKind(Protocol):
    """A message, by its event type's kind."""

    @property
    def kind(self) -> str:
        """TOPIC or QUEUE."""


def placed(messages: Sequence[OfKind], matches: Sequence[Sequence[Match]]) -> Iterator[Placed]:
    """Yield a delivery for every subscription that a message qualifies for, in the order of the messages."""
    numbers = itertools.count(1)
    for place, (message, qualified) in enumerate(zip(messages, matches, strict=True), 1):
        if message.kind != EventKind.QUEUE:
            yield from ((place, *match[:3], 0) for match in qualified)
            continue
        for group in groups_of(qualified):
            number, failure = next(numbers), failure_of(group)
            yield from ((place, one.subscription_id, one.subscriber_id, failure, number) for one in group)


def sender_lines(senders: int) -> dict[int, str]:
    """Return the Celery queue of each sender's line, by its id, in the order of senders; made where one is missing."""
    lines = dict(rows(SENDERS, [senders]))
    if len(lines) < senders:
        rows(GIVE_SENDERS_LINES, [senders])
        lines = dict(rows(SENDERS, [senders]))  # also those that somebody else has made meanwhile
    return lines
