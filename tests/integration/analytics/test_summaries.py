"""Summaries over the API and in the admin."""

import csv
import io
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pyarrow import parquet

from analytics import summaries
from analytics.models import Run, RunKind, RunWindow, rows_of
from analytics.pipeline.job import midnight
from analytics.pipeline.tables import RELIABILITY
from analytics.summaries import SUMMARIES
from delivery.maintenance.partitions import today
from delivery.models import StorageDay
from subscriptions.models import Publisher
from tests.support import stored_summaries
from tests.support.admin import browser_with
from tests.support.api import client_of
from tests.support.database import execute
from tests.support.factories import subscriber
from tests.support.stored_summaries import BILLING, HOUR, MAILER, NOON

pytestmark = pytest.mark.django_db
TODAY = "from=2026-05-04T00:00:00Z&to=2026-05-05T00:00:00Z"

PAGE = "/admin/analytics/run/summaries/"
THAT_DAY = "?range=24h&until=2026-05-04"


def read(management: Client, path: str) -> Any:
    answer = management.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_the_list_describes_each_summary(management: Client) -> None:
    items = read(management, "summaries")["items"]
    assert [one["name"] for one in items] == [*SUMMARIES]
    assert all(one["description"].endswith((".", "!")) and one["columns"] for one in items)
    assert items[0]["columns"][0] == {"name": "hour", "type": "timestamp"}


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_summary_can_be_read_and_written_to_files(management: Client, name: str) -> None:
    stored_summaries.store_one_row_of_each()
    [item] = read(management, f"summaries/{name}?{TODAY}")["items"]
    columns = SUMMARIES[name].types
    assert [*item] == [*columns]
    [header, row] = csv.reader(io.StringIO(whole(management, f"summaries/{name}.csv?{TODAY}").decode()))
    assert (header, len(row)) == ([*columns], len(columns))
    table = parquet.read_table(io.BytesIO(whole(management, f"summaries/{name}.parquet?{TODAY}")))
    assert (table.column_names, table.num_rows) == ([*columns], 1)


def whole(management: Client, path: str) -> bytes:
    answer: Any = management.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    assert "attachment" in answer["Content-Disposition"]
    return b"".join(answer.streaming_content)


def test_parquet_keeps_types_and_csv_writes_maps_as_json(management: Client) -> None:
    stored_summaries.reliability(NOON, BILLING, DELIVERED=3)
    stored_summaries.latency(NOON, {-1: 2, 30: 1})
    table = parquet.read_table(io.BytesIO(whole(management, f"summaries/latency.parquet?{TODAY}")))
    assert table.to_pylist()[0]["histogram"] == [(-1, 2), (30, 1)]
    assert table.to_pylist()[0]["hour"] == NOON
    text = whole(management, f"summaries/reliability.csv?{TODAY}").decode()
    assert '"{""DELIVERED"": 3}"' in text
    assert "2026-05-04T12:00:00+00:00" in text


def test_a_file_has_a_limit_that_its_refusal_names(
    management: Client, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(summaries, "MAX_FILE_ROWS", 1)
    for number in range(2):
        assert whole(management, f"summaries/reliability.csv?{TODAY}")
        stored_summaries.reliability(NOON + number * HOUR, BILLING, DELIVERED=1)
    refused = management.get(f"/api/v1/summaries/reliability.csv?{TODAY}")
    assert (refused.status_code, "shorter range" in refused.text) == (400, True)
    page = admin.get(f"{PAGE}volume.csv{THAT_DAY}")
    assert page.status_code == 200
    page = admin.get(f"{PAGE}reliability.csv{THAT_DAY}")
    assert (page.status_code, "shorter range" in page.text) == (400, True)


def test_an_empty_range_is_a_file_of_its_header(management: Client) -> None:
    assert whole(management, f"summaries/budgets.csv?{TODAY}").startswith(b"day,subscriber_id")
    table = parquet.read_table(io.BytesIO(whole(management, f"summaries/budgets.parquet?{TODAY}")))
    assert (table.num_rows, table.schema.field("day").type) == (0, "date32")


def test_pages_come_in_the_order_of_time_and_read_the_same_backwards(management: Client) -> None:
    for number in (2, 0, 1, 0, 2):
        stored_summaries.reliability(NOON + number * HOUR, BILLING, DELIVERED=number)
    pages = [read(management, f"summaries/reliability?{TODAY}&limit=2")]
    while url := pages[-1]["next"]:
        pages.append(management.get(url).json())
    hours = [item["hour"][11:13] for page in pages for item in page["items"]]
    assert hours == ["12", "12", "13", "14", "14"]
    back = management.get(pages[-1]["previous"]).json()
    assert back["items"] == pages[-2]["items"]


def test_a_page_does_not_read_the_pages_before_it(management: Client) -> None:
    number = {"deliveries": 1, "delivered": 1, "eligible": 1, "first_attempt": 1, "attempts": 1}
    row = rows_of(RELIABILITY).model
    row.objects.bulk_create([row(hour=NOON + hour * HOUR, **BILLING, **number) for hour in range(3000)])
    execute("ANALYZE analytics_reliability")
    address = f"summaries/reliability?{TODAY.partition('&')[0]}&limit=200"
    for _ in range(10):
        address = read(management, address)["next"].partition("/api/v1/")[2]
    with CaptureQueriesContext(connection) as queries:
        read(management, address)
    (asked,) = [one["sql"] for one in queries if 'FROM "analytics_reliability"' in one["sql"]]
    [[[document]]] = execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {asked}")
    plan = document["Plan"]
    while "Plans" in plan:
        (plan,) = plan["Plans"]
    assert (plan["Node Type"], plan.get("Rows Removed by Filter", 0) < 10) == ("Index Scan", True)


def test_rows_are_filtered_by_name(management: Client) -> None:
    stored_summaries.reliability(NOON, BILLING, DELIVERED=1)
    stored_summaries.reliability(NOON, MAILER, DELIVERED=2)
    [item] = read(management, f"summaries/reliability?{TODAY}&subscriber=Mailer")["items"]
    assert item["delivered"] == 2


def test_without_a_range_it_is_the_last_day(management: Client) -> None:
    stored_summaries.reliability(NOON, BILLING, DELIVERED=1)
    assert read(management, "summaries/reliability")["items"] == []
    assert read(management, "summaries/reliability?from=2000-01-01T00:00:00Z")["items"] != []


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("from=2026-05-05T00:00:00Z&to=2026-05-04T00:00:00Z", "to"),
        ("from=yesterday", "from"),
        ("to=2026-05-04T00:00:00", "to"),
        ("publisher=shop", "publisher"),
        ("colour=red", "colour"),
        ("limit=0", "limit"),
    ],
)
@pytest.mark.parametrize("path", ["summaries/reliability", "summaries/reliability.csv"])
def test_unusable_queries_are_refused_by_parameter(management: Client, path: str, query: str, parameter: str) -> None:
    answer = management.get(f"/api/v1/{path}?{query}")
    assert (answer.status_code, answer.json()["errors"][0]["parameter"]) == (400, parameter)


@pytest.mark.parametrize("path", ["summaries/nothing", "summaries/nothing.csv", "summaries/reliability.xlsx"])
def test_unknown_summaries_are_not_found(management: Client, path: str) -> None:
    assert management.get(f"/api/v1/{path}").status_code == 404


@pytest.mark.parametrize("path", ["summaries", "summaries/reliability", "summaries/audit.csv", "summary-runs"])
def test_summaries_take_a_management_key(client: Client, publisher: Publisher, path: str) -> None:
    assert client_of(publisher).get(f"/api/v1/{path}").status_code == 403
    assert Client().get(f"/api/v1/{path}").status_code == 401


def test_a_run_is_read_with_its_windows_and_its_log(management: Client) -> None:
    run = Run.objects.create(kind=RunKind.DAYS, log="said much")
    checks = [{"name": "row parity", "passed": True, "found": ""}]
    RunWindow.objects.create(run=run, start=NOON, end=NOON + HOUR, state="PASSED", checks=checks)
    whole_run = read(management, f"summary-runs/{run.pk}")
    assert (whole_run["log"], whole_run["windows"][0]["checks"]) == ("said much", checks)
    assert [one["id"] for one in read(management, "summary-runs?state=WAITING")["items"]] == [run.pk]
    assert read(management, "summary-runs?state=FAILED")["items"] == []


def test_a_run_can_be_requested(storage: None, management: Client) -> None:
    start, end = midnight(today()), timezone.now()
    wanted = {"from": start.isoformat(), "to": end.isoformat(), "again": True}
    answer = management.post("/api/v1/summary-runs", wanted, content_type="application/json")
    assert answer.status_code == 202
    run = Run.objects.get(pk=answer.json()["id"])
    assert (run.kind, run.again, run.start, run.end) == ("RANGE", True, start, end)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"from": "2026-05-04T00:00:00Z"}, 400),
        ({"from": "2026-05-05T00:00:00Z", "to": "2026-05-04T00:00:00Z"}, 422),
        ({"from": "2999-01-01T00:00:00Z", "to": "2999-01-02T00:00:00Z"}, 422),
        ({"from": "2026-05-04T00:00:00Z", "to": "2026-05-05T00:00:00Z", "colour": "red"}, 400),
    ],
)
def test_unusable_runs_are_refused_and_nothing_is_stored(management: Client, body: dict[str, Any], status: int) -> None:
    answer = management.post("/api/v1/summary-runs", body, content_type="application/json")
    assert (answer.status_code, Run.objects.count()) == (status, 0), answer.content


def text_of(admin: Client, path: str) -> str:
    answer = admin.get(path)
    assert answer.status_code == 200, answer
    return answer.content.decode()


def test_without_any_summary_the_page_says_what_to_expect(admin: Client) -> None:
    page = text_of(admin, PAGE)
    assert "No run has succeeded yet" in page
    assert "nothing is summarized" in page
    said = ("No delivery ended.", "Nothing was published.", "Nothing to report.")
    assert [words for words in said if words not in page] == []
    assert "None failed." not in page


def test_the_page_says_how_much_of_the_range_is_summarized(admin: Client) -> None:
    run = Run.objects.create(kind=RunKind.HOURS)
    for hour, state in ((9, "PASSED"), (10, "PASSED"), (11, "FAILED"), (13, "PASSED")):
        start = NOON.replace(hour=hour)
        RunWindow.objects.create(run=run, start=start, end=start + HOUR, state=state)
    page = text_of(admin, PAGE + THAT_DAY)
    assert "summarized: 2026-05-04 09:00 to 2026-05-04 11:00; 2026-05-04 13:00 to 2026-05-04 14:00." in page


def test_the_page_shows_every_topic_of_the_range(admin: Client) -> None:
    stored_summaries.store_one_row_of_each()
    page = text_of(admin, PAGE + THAT_DAY)
    assert page.count('class="chart"') == 6
    words = ("88.88 %", "1 unexplained", "https://four.example", "2 of 10", "failure_rate", "04 May 12:00", "503")
    assert [word for word in words if word not in page] == []


def cost(admin: Client, path: str) -> int:
    with CaptureQueriesContext(connection) as queries:
        text_of(admin, path)
    return len(queries)


def test_the_page_costs_as_many_queries_however_much_there_is(admin: Client) -> None:
    few = cost(admin, PAGE + THAT_DAY)
    for hours in range(10):
        stored_summaries.reliability(NOON + hours * HOUR, BILLING, DELIVERED=1)
        stored_summaries.endpoint(NOON + hours * HOUR, hours, **{"4xx": 1})
    assert cost(admin, PAGE + THAT_DAY) == few


def test_it_can_be_narrowed_to_one_subscriber(admin: Client) -> None:
    other = subscriber("Other")
    stored_summaries.store_one_row_of_each()
    stored_summaries.reliability(NOON, {"subscriber_id": other.pk, "subscriber": "Other"}, FAILED=4)
    page = text_of(admin, f"{PAGE}{THAT_DAY}&subscriber=+Other+")
    assert ("0.00 %" in page, "88.88 %" in page) == (True, False)


@pytest.mark.parametrize("query", ["?range=9y", "?until=never", "?subscriber=nobody", "?until=9999-12-31"])
def test_unusable_choices_show_nobodys_figures(admin: Client, query: str) -> None:
    page = text_of(admin, PAGE + query)
    assert ("Reliability" in page, "Range" in page) == (False, True)
    assert admin.get(f"{PAGE}reliability.csv{query}").status_code == 400


def test_days_that_are_kept_until_they_are_summarized_are_named(admin: Client) -> None:
    assert "Kept past their time" not in text_of(admin, PAGE)
    StorageDay.objects.create(day=NOON.date(), kept_on=NOON.date())
    assert "Kept beyond their retention until they are summarized:</strong> 2026-05-04." in text_of(admin, PAGE)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_each_topic_can_be_downloaded(admin: Client, suffix: str) -> None:
    stored_summaries.store_one_row_of_each()
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
    assert f"Run {run.pk} is requested" in answer.content.decode()


def test_a_range_that_has_not_begun_is_refused_in_words(admin: Client) -> None:
    answer = admin.post("/admin/analytics/run/summarize/", {"range": "24h", "until": "2999-05-04"}, follow=True)
    page = answer.content.decode()
    assert (Run.objects.count(), "errornote" in page or "bg-red" in page) == (0, True)


def test_a_run_shows_its_windows_its_checks_and_its_log(admin: Client) -> None:
    run = Run.objects.create(kind=RunKind.HOURS, log="said <much>", error="No Java was found.\nInstall one.")
    failed = {"name": "row parity", "passed": False, "found": "1 missing"}
    RunWindow.objects.create(run=run, start=NOON, end=NOON + HOUR, state="FAILED", checks=[failed])
    page = text_of(admin, f"/admin/analytics/run/{run.pk}/change/")
    assert ("said &lt;much&gt;" in page, "failed: row parity" in page, "Install one." in page) == (True, True, True)
    assert "No Java was found." in text_of(admin, "/admin/analytics/run/")


@pytest.mark.behaviour("11.10")
def test_the_page_of_a_run_shows_how_far_it_is_and_cancels_it(admin: Client, management: Client) -> None:
    run = Run.objects.create(kind=RunKind.HOURS, state="RUNNING", started_at=timezone.now())
    page, cancel = (f"/admin/analytics/run/{run.pk}/{last}/" for last in ("change", "cancel"))
    assert "Spark is starting" in text_of(admin, page)
    position = {"number": 3, "total": 14, "step": "reading"}
    Run.objects.update(progress=position, started_at=timezone.now() - HOUR / 60)
    assert "window 3 of 14, reading, about 6 min left" in text_of(admin, "/admin/analytics/run/")
    shown = text_of(admin, page)
    assert [words in shown for words in ("window 3 of 14, reading", f'hx-get="{page}"', cancel)] == [True] * 3
    admin.post(cancel, {"_form_submitted": "on"})
    assert ("Cancelling" in text_of(admin, page), cancel in text_of(admin, page)) == (True, False)
    Run.objects.update(state="PASSED", progress=None)
    shown = text_of(admin, page)
    assert [words in shown for words in ('id="live"', f'hx-get="{page}"', cancel)] == [True, False, False]
    answer = management.post(f"/api/v1/summary-runs/{run.pk}/cancel")
    assert (answer.status_code, answer.json()["code"]) == (409, "finished")


def test_the_list_of_runs_costs_as_many_queries_however_long_it_is(admin: Client) -> None:
    Run.objects.create(kind=RunKind.HOURS)
    one = cost(admin, "/admin/analytics/run/")
    for _ in range(3):
        run = Run.objects.create(kind=RunKind.HOURS)
        RunWindow.objects.create(run=run, start=NOON, end=NOON + HOUR, state="PASSED")
    assert cost(admin, "/admin/analytics/run/") == one


def test_who_may_only_look_asks_for_no_run() -> None:
    client = browser_with("analytics.view_run")
    assert "Summarize this range now" not in text_of(client, PAGE)
    assert client.post("/admin/analytics/run/summarize/", {"range": "24h"}).status_code == 403
    stranger = browser_with()
    assert {stranger.get(PAGE).status_code, stranger.get(f"{PAGE}audit.csv").status_code} == {403}
