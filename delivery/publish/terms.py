"""What publishers say of how, and in which time, a message is to be sent (behaviour 2.9, 2.10, 2.13)."""

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

from delivery.publish.errors import InvalidMetadata

GUARANTEED: Final = "guaranteed"
"""Stored before it is answered, and sent until it is taken."""
VOLATILE: Final = "volatile"
"""Stored nowhere, and sent once."""
MOST: Final = timedelta(days=30)
"""So long a message may live, or be held back, at most."""
UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}

_TTL = re.compile(r"(\d{1,8})([smhd]?)", re.ASCII)
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def durability_of(text: str | None) -> str:
    """Return `guaranteed`, which is meant where nothing is said, or `volatile`.

    Raises:
        InvalidMetadata: it says neither.

    """
    said = GUARANTEED if text is None else text
    if said not in {GUARANTEED, VOLATILE}:
        raise InvalidMetadata(
            f"Broker-Durability is '{GUARANTEED}', or '{VOLATILE}': send one of them, or leave it out."
        )
    return said


def time_of(ttl: str | None, not_before: str | None, *, now: datetime) -> tuple[float | None, datetime | None]:
    """Return how many seconds a message lives from `now` on, and before when it is not sent; None: not said.

    Raises:
        InvalidMetadata: one of them cannot be read, or it would not live until it may be sent.

    """
    seconds = None if ttl is None else ttl_of(ttl)
    moment = None if not_before is None else moment_of(not_before, now=now)
    if seconds is not None and moment is not None and now + timedelta(seconds=seconds) <= moment:
        raise InvalidMetadata(
            "Its time to live, which counts from now on, ends before it may be sent: let it live longer."
        )
    return seconds, moment


def ttl_of(text: str) -> float:
    """Return the seconds that a time to live says: `90`, `90s`, `15m`, `12h` or `4d`.

    Raises:
        InvalidMetadata: it says no time from 1 second to 30 days.

    """
    told = _TTL.fullmatch(text)
    seconds = float(int(told[1]) * UNITS[told[2]]) if told else 0.0
    if not 1 <= seconds <= MOST.total_seconds():
        raise InvalidMetadata(
            f"A time to live is a number of seconds, or one with s, m, h or d behind it, as in 15m, from 1 s to "
            f"{MOST.days} d."
        )
    return seconds


def moment_of(text: str, *, now: datetime) -> datetime:
    """Return the moment that a text in the form of RFC 3339, or of HTTP's dates, says; one that is past, too.

    Raises:
        InvalidMetadata: it says none, or one more than 30 days after `now`.

    """
    moment = _moment_of(text)
    if moment is None:
        raise InvalidMetadata(
            "A time is given with its zone, as in 2026-12-24T18:00:00Z, or as in Thu, 24 Dec 2026 18:00:00 GMT."
        )
    if moment > now + MOST:
        raise InvalidMetadata(f"A message can be held back for {MOST.days} days at most.")
    return moment


def _moment_of(text: str) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text.upper()) if _RFC_3339.fullmatch(text) else parsedate_to_datetime(text)
        return moment.astimezone(UTC) if moment.tzinfo else None
    except (ValueError, OverflowError):
        return None
