"""Days that were not summarized: retention leaves them, and says so."""

import datetime as dt
from typing import Any

import pytest
import structlog
from django.db.models.functions import Now
from django.test import Client

from delivery.maintenance.maintainer import maintain
from delivery.maintenance.partitions import DAYS_AHEAD, open_days, today
from delivery.maintenance.retention import days_kept
from delivery.models import StorageDay

KEEP_DAYS = 14
DAY = dt.timedelta(days=1)


@pytest.fixture
def past(storage: None) -> dt.date:
    """A day past its time, of a broker that has run ever since; it has partitions."""
    day = today() - dt.timedelta(days=KEEP_DAYS + 1)
    lived = [day + dt.timedelta(days=number) for number in range(KEEP_DAYS + 2 + DAYS_AHEAD)]
    StorageDay.objects.bulk_create([StorageDay(day=one) for one in lived], ignore_conflicts=True)
    open_days(day, ahead=0)
    return day


def summarize(*days: dt.date) -> None:
    StorageDay.objects.filter(day__in=days).update(summarized_at=Now())


def is_kept(day: dt.date) -> bool:
    return StorageDay.objects.filter(day=day, dropped_at=None).exists()


def warnings(logged: list[Any]) -> list[list[str]]:
    return [event["days"] for event in logged if event["event"] == "storage_day.waits_for_summary"]


@pytest.mark.behaviour("11.4")
def test_a_day_past_its_time_waits_for_its_summary(past: dt.date) -> None:
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert (is_kept(past), days_kept()) == (True, [past])
    summarize(past, past + DAY)
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert (is_kept(past), days_kept()) == (False, [])


@pytest.mark.behaviour("11.4")
def test_a_day_waits_for_the_summary_of_the_next_too_whose_first_rows_may_stand_in_it(past: dt.date) -> None:
    summarize(past)
    with structlog.testing.capture_logs() as logged:
        maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert (is_kept(past), warnings(logged)) == (True, [])  # it is not the one that has none
    summarize(past + DAY)
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert not is_kept(past)


@pytest.mark.behaviour("11.4")
def test_a_day_waits_for_the_summary_of_the_day_before_whose_last_rows_may_stand_in_it(past: dt.date) -> None:
    before = past - DAY
    StorageDay.objects.create(day=before)
    open_days(before, ahead=0)
    summarize(past, past + DAY)
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert (is_kept(past), days_kept()) == (True, [before])
    summarize(before)
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert (is_kept(before), is_kept(past)) == (False, False)


@pytest.mark.behaviour("11.4")
def test_after_an_outage_the_next_day_is_the_one_on_which_the_broker_ran_again(past: dt.date) -> None:
    long_ago = past - 30 * DAY
    opened_then = [long_ago + number * DAY for number in range(1 + DAYS_AHEAD)]
    StorageDay.objects.bulk_create([StorageDay(day=day) for day in opened_then])
    summarize(*opened_then)
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert is_kept(long_ago)
    summarize(past, past + DAY)
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert not is_kept(long_ago)


@pytest.mark.behaviour("11.4")
def test_where_no_summaries_are_wanted_nothing_waits_for_them(past: dt.date) -> None:
    maintain(keep_days=KEEP_DAYS, until_summarized=False)
    assert (is_kept(past), days_kept()) == (False, [])


def test_what_is_kept_is_said_once_a_day_however_often_it_is_looked_at(past: dt.date) -> None:
    with structlog.testing.capture_logs() as logged:
        maintain(keep_days=KEEP_DAYS, until_summarized=True)
        maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert warnings(logged) == [[str(past)]]
    StorageDay.objects.update(kept_on=today() - DAY)
    with structlog.testing.capture_logs() as logged:
        maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert warnings(logged) == [[str(past)]]


def test_the_list_of_runs_names_what_is_kept(past: dt.date, admin: Client) -> None:
    def page() -> str:
        return admin.get("/admin/analytics/run/").content.decode()

    said = f"Past their time, and kept until they are summarized: {past}."
    assert said not in page()
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert said in page()


def test_what_was_dropped_before_summaries_were_wanted_waits_for_none(past: dt.date) -> None:
    StorageDay.objects.filter(day=past).update(dropped_at=Now())
    maintain(keep_days=KEEP_DAYS, until_summarized=True)
    assert (StorageDay.objects.filter(day=past).exists(), days_kept()) == (False, [])
