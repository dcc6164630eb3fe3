"""Where among the ids of messages a moment is (behaviour 5.8)."""

import datetime as dt
from typing import Final

from broker_project.core.db import rows

OLDER: Final = """
SELECT id, published_at < %s::timestamptz FROM delivery_message WHERE id >= %s ORDER BY id LIMIT 1
"""
NEWEST: Final = "SELECT last_value FROM delivery_message_id_seq"

SPREAD: Final = dt.timedelta(minutes=10)
"""Messages are published in the order of their ids, but for what runs at once, or while a clock is set."""


def newest() -> int:
    """Return the newest message, or one that is about to be."""
    ((newest,),) = rows(NEWEST)
    return int(newest)


def published_before(since: dt.datetime | None) -> int:
    """Return a message of before that moment, which all up to it are; one shortly before it, if there is any."""
    low, high = 1, newest() + 1
    while since and low < high:
        middle = (low + high) // 2
        found = rows(OLDER, [since - SPREAD, middle])
        older = [one for one, is_older in found if is_older]
        low, high = (older[0] + 1, high) if older else (low, middle)
    return low - 1
