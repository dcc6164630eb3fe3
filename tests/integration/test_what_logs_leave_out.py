"""Errors of PostgreSQL as they are logged: what was refused, and not with which values."""

import logging
import sys
from collections.abc import Callable

import pytest
from django.db import DatabaseError, connection

from subscriptions.models import Subscriber

SECRET = "confidential-0123456789"


def constraint() -> None:
    Subscriber.objects.create(name="café", description=SECRET, concurrency=-1)


def duplicate() -> None:
    for _ in range(2):
        Subscriber.objects.create(name=SECRET)


def wrong_number() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::int", [SECRET])


def wrong_json() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb", [f'{{"key": {SECRET}}}'])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("fails", [constraint, duplicate, wrong_number, wrong_json])
def test_a_logged_database_error_has_no_values(fails: Callable[[], None]) -> None:
    logged = logged_of(fails)
    assert "Traceback" in logged
    assert "django.db.utils." in logged
    assert SECRET not in logged


def logged_of(fails: Callable[[], None]) -> str:
    """Return how a failure is logged that nobody has caught."""
    formatter = next(handler.formatter for handler in logging.getLogger().handlers if handler.formatter)
    try:
        fails()
    except DatabaseError:
        record = logging.LogRecord("django.request", logging.ERROR, "", 0, "Server Error: %s", ("/",), sys.exc_info())
        return formatter.format(record)
    raise AssertionError("it did not fail")
