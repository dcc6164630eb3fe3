"""Emptying a mailbox (behaviour 9.7)."""

from typing import NamedTuple


class Purged(NamedTuple):
    """What purging did."""

    cancelled: int
    """Ended as CANCELLED."""
    in_flight: int
    """In flight: end so unless they are acknowledged."""
    is_complete: bool
    """Whether that was all there was when it began; else it is to be asked for again."""


def purge(subscriber_id: int, *, seconds: float) -> Purged:
    """End as CANCELLED what the subscriber's mailbox has now, as much of it as `seconds` allow."""
    raise NotImplementedError
