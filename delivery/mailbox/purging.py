"""Emptying a mailbox (behaviour 9.7)."""

from time import monotonic
from typing import Final, NamedTuple

from broker_project.core.db import rows
from delivery.cancelling import cancel_until

PULLED: Final = """
SELECT id FROM subscriptions_subscription WHERE subscriber_id = %s AND delivery_mode = 'PULL' ORDER BY id
"""


PURGE_SECONDS: Final = 5.0
"""As long as somebody waits for an answer or a page; there may be more then, and it is asked for again."""


class Purged(NamedTuple):
    """What purging did."""

    cancelled: int
    """Ended as CANCELLED."""
    in_flight: int
    """In flight, and newly asked to end so unless they are acknowledged."""
    is_complete: bool
    """Whether nothing that was there when it began is available any more; else it is to be asked for again."""


def purge(subscriber_id: int, *, seconds: float) -> Purged:
    """End as CANCELLED what the subscriber's mailbox has now, as much of it as `seconds` allow."""
    until = monotonic() + seconds
    cancelled = in_flight = 0
    for (subscription_id,) in rows(PULLED, [subscriber_id]):
        one = cancel_until(lambda: monotonic() >= until, subscription_id, reason="purged")
        cancelled, in_flight = cancelled + one.ended, in_flight + one.under_way
        if not one.is_complete:
            return Purged(cancelled, in_flight, is_complete=False)
    return Purged(cancelled, in_flight, is_complete=True)
