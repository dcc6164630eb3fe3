"""SYNC calls for tests: many at once, what they were answered, and what is recorded of them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connection

from delivery.models import Delivery
from tests.clients import Answer

PATH = "/answers"
"""Where the endpoint is that is asked."""
FAILING = "$$->'Body'->'n' > '5'"
FAILS = b'{"n": 1e200000}'
"""A number with more digits than can be compared."""


def said_of(answered: Answer) -> tuple[int, bytes, str]:
    return answered.status_code, answered.content, answered["Broker-Outcome"]


def recorded() -> list[tuple[str, str, str, int]]:
    """Return outcome, status, reason and number of attempts of every call, in the order of publishing."""
    rows = Delivery.objects.select_related("message").oldest_first()
    return [(row.message.outcome, row.status, row.reason, row.attempts) for row in rows if row.message]


def in_threads(count: int, act: Any) -> list[Any]:
    """Act in so many threads at once, each of which gives back its database connection."""

    def one(_: int) -> Any:
        try:
            return act()
        finally:
            connection.close()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(one, range(count)))
