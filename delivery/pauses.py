"""How long a delivery or a line waits before it is tried again (behaviour 4.6 to 4.8)."""

from typing import Final

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
LONGEST_RETRY_AFTER_SECONDS: Final = 300.0
"""An endpoint may ask for more; it is not given more."""
JITTER: Final = 0.2
"""The share by which a held line's pause may be shorter, so that lines held together do not come back together."""


def aside_pause(tries: int) -> float:
    """Return the seconds until a delivery set aside for the `tries`-th time is due again: 1, 2, 4 … 60."""
    return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(tries - 1, 16))


def hold_pause(failures: int, *, retry_after: float | None, chance: float) -> float:
    """Return the seconds a held line waits after `failures` unsuccessful tries in a row.

    Grows from 1 to 60 s, less up to a fifth by `chance` (0 to 1); what the endpoint asks for is honoured up to 300 s.
    """
    if retry_after is not None:
        return min(max(retry_after, FIRST_PAUSE_SECONDS), LONGEST_RETRY_AFTER_SECONDS)
    return max(FIRST_PAUSE_SECONDS, aside_pause(failures) * (1.0 - JITTER * chance))


def refused_pause(*, chance: float) -> float:
    """Return the seconds until what was not sent, its address being out of reach, is tried again: waiting is no help.

    Whoever gives another endpoint makes it due at once.
    """
    return LONGEST_PAUSE_SECONDS * (1.0 - JITTER * chance)
