"""Days that are over and not sealed: who has written something and not ended keeps them so, and it is said."""

import datetime as dt
from typing import Any

import psycopg
import pytest
import structlog
from django.test import Client

from analytics import due, run_requests
from analytics.open_transactions import OpenTransaction

DAY = dt.timedelta(days=1)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, storage: None) -> dt.datetime:
    """Let it be the day after tomorrow."""
    instant = run_requests.now() + 2 * DAY
    monkeypatch.setattr(run_requests, "now", lambda: instant)
    return instant


def write(elsewhere: psycopg.Connection[Any]) -> None:
    elsewhere.execute("SET LOCAL application_name = 'a report'")
    elsewhere.execute("SELECT pg_current_xact_id()")


def test_a_transaction_that_has_written_keeps_its_day_from_being_sealed_and_one_that_reads_does_not(
    later: dt.datetime, elsewhere: psycopg.Connection[Any]
) -> None:
    with elsewhere.transaction():
        [(began,)] = elsewhere.execute("SELECT now()").fetchall()
        assert due.calendar(later, call_seconds=0).growing_from > began.date()
        assert due.held_up_by(later, call_seconds=0) is None
        write(elsewhere)
        assert due.calendar(later, call_seconds=0).growing_from == began.date()
        oldest = due.held_up_by(later, call_seconds=0)
        assert oldest == OpenTransaction(elsewhere.info.backend_pid, "a report", began)
        assert due.held_up_by(began, call_seconds=0) is None  # its day is not over
    assert due.held_up_by(later, call_seconds=0) is None


def test_what_keeps_days_from_being_sealed_is_said_daily_and_where_runs_are_listed(
    later: dt.datetime, elsewhere: psycopg.Connection[Any], admin: Client
) -> None:
    def said() -> tuple[int, bool]:
        with structlog.testing.capture_logs() as logged:
            run_requests.request_days(call_seconds=0)
        page = admin.get("/admin/analytics/run/").content.decode()
        return sum(event["event"] == "summaries.held_up" for event in logged), ending in page

    ending = f"SELECT pg_terminate_backend({elsewhere.info.backend_pid})."
    with elsewhere.transaction():
        assert said() == (0, False)
        write(elsewhere)
        assert said() == (1, True)
