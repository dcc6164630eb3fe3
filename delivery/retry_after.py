"""How long an endpoint asks us to wait: the `Retry-After` header, in seconds or as a date."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_HEADER = re.compile(rb"^retry-after:[ \t]*([\x20-\x7e]{1,64}?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


def retry_after_seconds(head: bytes, *, at: datetime) -> float | None:
    """Return the seconds asked for in an answer's header lines received `at`; None where none are, or nonsense."""
    found = _HEADER.search(head)
    if not found:
        return None
    text = found.group(1).decode()
    if text.isdigit():
        return float(text[:9])
    try:
        until = parsedate_to_datetime(text)
    except (ValueError, OverflowError):  # of numbers that no date has
        return None
    return max(0.0, ((until if until.tzinfo else until.replace(tzinfo=UTC)) - at).total_seconds())
