"""Waiting for each other, for tests: whoever does something beside, and a mailbox in which every order is another."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import LiteralString, TypeVar

from django.db import connection

from broker_project.core.db import forget_connection
from delivery.mailbox.mailbox import Receipt
from subscriptions.models import Subscription
from tests.driving import publish_numbered
from tests.mailboxes import fetched
from tests.receiver import wait_until

T = TypeVar("T")

SOMEBODY_WAITS: LiteralString = (
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
NEWEST_FIRST: LiteralString = """
UPDATE delivery_open SET fetched_until = now() + %s::int * interval '1 hour' - id %% 1000000 * interval '1 ms',
                         expires_at = now() - id %% 1000000 * interval '1 ms'"""
"""Whatever has an order of its own has it the other way round than ids."""


def alone(do: Callable[[], T]) -> T:
    """Do it in this thread, and leave no connection."""
    try:
        return do()
    finally:
        forget_connection()


@contextmanager
def beside(do: Callable[[], T]) -> "Iterator[Future[T]]":
    """Do it in a thread of its own; begun when it is done, or waits for somebody."""
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(alone, do)
        wait_until(lambda: done.done() or _is_anybody_waiting())
        yield done


def _is_anybody_waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(SOMEBODY_WAITS)
        return cursor.fetchone() is not None


def hand_out_newest_first(pulled: Subscription, number: int, *, hours: int) -> list[Receipt]:
    """Hand out so many, due in so many hours, or timed out that long ago; return their receipts, newest first."""
    publish_numbered(pulled.event_type, number)
    receipts = [one.receipt for one in fetched(pulled, number)]
    with connection.cursor() as cursor:
        cursor.execute(NEWEST_FIRST, [hours])
    return receipts[::-1]
