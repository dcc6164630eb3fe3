"""How long an endpoint asks us to wait: the `Retry-After` header, in seconds or as a date."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from delivery.http.answer_heads import values_in

NAME: Final = "Retry-After"
MOST_CHARACTERS: Final = 64
"""No number of seconds and no date is longer."""


def retry_after_seconds(head: bytes, *, at: datetime) -> float | None:
    """Return the seconds asked for in an answer's header lines received `at`; None where none are, or nonsense."""
    text = values_in(head, [NAME]).get(NAME) if NAME.lower().encode() in head.lower() else None
    if not text or len(text) > MOST_CHARACTERS:
        return None
    if text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # of numbers that no date has
        return None
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - at).total_seconds())
