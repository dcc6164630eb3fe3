"""Releasing what is HELD because its filter or its script failed: back to its place in its line (behaviour 3.6)."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from django.db import transaction

from delivery import wakeups
from subscriptions.database import rows

LOCK_LINES: Final = """
SELECT l.id FROM delivery_line l
 WHERE l.id IN (SELECT d.line_id FROM delivery_open d WHERE d.id = ANY(%s) AND d.closed_on = '9999-12-31')
 ORDER BY l.id FOR NO KEY UPDATE OF l
"""
"""First the lines, then their deliveries, as whoever settles or cancels does."""

RELEASE: Final = """
UPDATE delivery_open d SET status = 'PENDING', due_at = NULL, reason = 'released; ' || d.reason
 WHERE d.id = ANY(%s) AND d.closed_on = '9999-12-31' AND d.status = 'HELD'
RETURNING d.id, d.line_id
"""


class NotHeld(Exception):
    """There is nothing to release; the text says so."""


def release(delivery_ids: Sequence[int]) -> list[int]:
    """Let those that are HELD be sent whatever their filters say, in order of id among what waits; return which.

    A script that failed runs again when the delivery is sent.
    """
    with transaction.atomic():
        rows(LOCK_LINES, [[*delivery_ids]])
        released = rows(RELEASE, [[*delivery_ids]])
        lines = sorted({line_id for _, line_id in released})
        transaction.on_commit(partial(wakeups.wake, wakeups.TOPIC, lines), robust=True)
    return sorted(delivery_id for delivery_id, _ in released)


def release_one(delivery_id: int) -> None:
    """Let a HELD delivery be sent.

    Raises:
        NotHeld: it is not HELD, or not any more.

    """
    if not release([delivery_id]):
        raise NotHeld("Only what is HELD can be released; this delivery is not, or not any more.")
