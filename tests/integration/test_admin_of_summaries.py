"""The page of summaries, its downloads, and runs in the admin."""

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from analytics.models import Run, RunKind, RunWindow
from delivery.models import StorageDay
from tests import summarized
from tests.factories import subscriber
from tests.summarized import BILLING, HOUR, NOON

pytestmark = pytest.mark.django_db
PAGE = "/admin/analytics/run/summaries/"
THAT_DAY = "?range=24h&until=2026-05-04"


def text_of(admin: Client, path: str) -> str:
    answer = admin.get(path)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def test_without_any_summary_the_page_says_what_to_expect(admin: Client) -> None:
    page = text_of(admin, PAGE)
    assert "No run has passed yet" in page
    assert "nothing is summarized" in page
    assert [
        words for words in ("No delivery ended.", "Nothing was published.", "Nothing to report.") if words not in page
    ] == []
    assert "None failed." not in page


def test_the_page_says_how_much_of_the_range_is_summarized(admin: Client) -> None:
    run = Run.objects.create(kind=RunKind.HOURS)
    for hour, state in ((9, "PASSED"), (10, "PASSED"), (11, "FAILED"), (13, "PASSED")):
        start = NOON.replace(hour=hour)
        RunWindow.objects.create(run=run, start=start, end=start + HOUR, state=state)
    page = text_of(admin, PAGE + THAT_DAY)
    assert "of which is summarized: 2026-05-04 09:00 to 2026-05-04 11:00; 2026-05-04 13:00 to 2026-05-04 14:00." in page


def test_the_page_shows_every_topic_of_the_range(admin: Client) -> None:
    summarized.one_of_each()
    page = text_of(admin, PAGE + THAT_DAY)
    assert page.count('class="chart"') == 6
    words = (
        "88.89%",
        "1 unexplained",
        "https://four.example",
        "2 of 10",
        "failure_rate",
        "04 May 12:00",
        "503",
    )
    assert [word for word in words if word not in page] == []


def test_the_page_costs_as_many_queries_however_much_there_is(admin: Client) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            text_of(admin, PAGE + THAT_DAY)
        return len(queries)

    few = cost()
    for hours in range(10):
        summarized.reliability(NOON + hours * HOUR, BILLING, DELIVERED=1)
        summarized.endpoint(NOON + hours * HOUR, hours, **{"4xx": 1})
    assert cost() == few


def test_it_can_be_narrowed_to_one_subscriber(admin: Client) -> None:
    other = subscriber("Other")
    summarized.one_of_each()
    summarized.reliability(NOON, {"subscriber_id": other.pk, "subscriber": "Other"}, FAILED=4)
    page = text_of(admin, f"{PAGE}{THAT_DAY}&subscriber=Other")
    assert ("0.00%" in page, "88.89%" in page) == (True, False)


@pytest.mark.parametrize("query", ["?range=9y", "?until=never", "?subscriber=nobody", "?until=9999-12-31"])
def test_unusable_choices_show_nobodys_figures(admin: Client, query: str) -> None:
    page = text_of(admin, PAGE + query)
    assert ("Reliability" in page, "Range" in page) == (False, True)
    assert admin.get(f"{PAGE}reliability.csv{query}").status_code == 400


def test_days_that_are_kept_until_they_are_summarized_are_named(admin: Client) -> None:
    assert "Kept past their time" not in text_of(admin, PAGE)
    StorageDay.objects.create(day=NOON.date(), kept_on=NOON.date())
    assert "Kept past their time until they are summarized:</strong> 2026-05-04." in text_of(admin, PAGE)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_each_topic_can_be_downloaded(admin: Client, suffix: str) -> None:
    summarized.one_of_each()
    answer: Any = admin.get(f"{PAGE}endpoints.{suffix}{THAT_DAY}")
    content = b"".join(answer.streaming_content)
    assert (answer.status_code, b"https://4.example" in content or suffix == "parquet") == (200, True)
    assert "endpoints-20260504T0000" in answer["Content-Disposition"]


def test_a_run_is_asked_for_by_a_button(storage: None, admin: Client) -> None:
    answer = admin.post("/admin/analytics/run/summarize/", {"range": "3d", "again": "on"}, follow=True)
    run = Run.objects.get()
    assert (run.kind, run.again, run.requested_by == User.objects.get()) == (RunKind.RANGE, True, True)
    assert run.start is not None
    assert run.end is not None
    assert 71 * HOUR < run.end - run.start < 72 * HOUR, "as far as it is over"
    assert f"Run {run.pk} is asked for" in answer.content.decode()


def test_a_range_that_has_not_begun_is_refused_in_words(admin: Client) -> None:
    answer = admin.post("/admin/analytics/run/summarize/", {"range": "24h", "until": "2999-05-04"}, follow=True)
    assert (Run.objects.count(), "errornote" in answer.content.decode() or "bg-red" in answer.content.decode()) == (
        0,
        True,
    )


def test_a_run_shows_its_windows_its_checks_and_its_log(admin: Client) -> None:
    run = Run.objects.create(kind=RunKind.HOURS, log="said <much>", error="No Java was found.\nInstall one.")
    failed = {"name": "row parity", "passed": False, "found": "1 missing"}
    RunWindow.objects.create(run=run, start=NOON, end=NOON + HOUR, state="FAILED", checks=[failed])
    page = text_of(admin, f"/admin/analytics/run/{run.pk}/change/")
    assert ("said &lt;much&gt;" in page, "failed: row parity" in page, "Install one." in page) == (True, True, True)
    assert "No Java was found." in text_of(admin, "/admin/analytics/run/")


def test_the_list_of_runs_costs_as_many_queries_however_long_it_is(admin: Client) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as queries:
            text_of(admin, "/admin/analytics/run/")
        return len(queries)

    Run.objects.create(kind=RunKind.HOURS)
    one = cost()
    for _ in range(3):
        run = Run.objects.create(kind=RunKind.HOURS)
        RunWindow.objects.create(run=run, start=NOON, end=NOON + HOUR, state="PASSED")
    assert cost() == one


def test_who_may_only_look_asks_for_no_run() -> None:
    reader = User.objects.create(username="reader", is_staff=True)
    reader.user_permissions.add(Permission.objects.get(codename="view_run"))
    client = Client()
    client.force_login(reader)
    assert "Summarize this range now" not in text_of(client, PAGE)
    assert client.post("/admin/analytics/run/summarize/", {"range": "24h"}).status_code == 403
    client.force_login(User.objects.create(username="stranger", is_staff=True))
    assert {client.get(PAGE).status_code, client.get(f"{PAGE}audit.csv").status_code} == {403}
