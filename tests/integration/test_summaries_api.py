"""Summaries over HTTP: page by page, as CSV, as Parquet; and runs."""

import csv
import io
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from pyarrow import parquet

from analytics.models import Reliability, Run, RunKind, RunWindow
from analytics.summaries import SUMMARIES
from analytics.windows import midnight
from delivery.maintenance.partitions import today
from subscriptions.models import Publisher
from tests import summarized
from tests.clients import client_of
from tests.summarized import BILLING, HOUR, MAILER, NOON

pytestmark = pytest.mark.django_db
TODAY = "from=2026-05-04T00:00:00Z&to=2026-05-05T00:00:00Z"


def read(management: Client, path: str) -> Any:
    answer = management.get(f"/api/v1/{path}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_the_list_says_what_each_summary_is(management: Client) -> None:
    items = read(management, "summaries")["items"]
    assert [one["name"] for one in items] == [*SUMMARIES]
    assert all(one["description"].endswith((".", "!")) and one["columns"] for one in items)
    assert items[0]["columns"][0] == {"name": "hour", "type": "timestamp"}


@pytest.mark.parametrize("name", SUMMARIES)
def test_every_summary_can_be_read_and_written_to_files(management: Client, name: str) -> None:
    summarized.one_of_each()
    [item] = read(management, f"summaries/{name}?{TODAY}")["items"]
    columns = SUMMARIES[name].columns
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
    summarized.reliability(NOON, BILLING, DELIVERED=3)
    summarized.latency(NOON, {-1: 2, 30: 1})
    table = parquet.read_table(io.BytesIO(whole(management, f"summaries/latency.parquet?{TODAY}")))
    assert table.to_pylist()[0]["histogram"] == [(-1, 2), (30, 1)]
    assert table.to_pylist()[0]["hour"] == NOON
    text = whole(management, f"summaries/reliability.csv?{TODAY}").decode()
    assert '"{""DELIVERED"": 3}"' in text
    assert "2026-05-04T12:00:00+00:00" in text


def test_an_empty_range_is_a_file_of_its_header(management: Client) -> None:
    assert whole(management, f"summaries/budgets.csv?{TODAY}").startswith(b"day,subscriber_id")
    table = parquet.read_table(io.BytesIO(whole(management, f"summaries/budgets.parquet?{TODAY}")))
    assert (table.num_rows, table.schema.field("day").type) == (0, "date32")


def test_pages_come_in_the_order_of_time_and_read_the_same_backwards(management: Client) -> None:
    for number in (2, 0, 1, 0, 2):
        summarized.reliability(NOON + number * HOUR, BILLING, DELIVERED=number)
    pages = [read(management, f"summaries/reliability?{TODAY}&limit=2")]
    while url := pages[-1]["next"]:
        pages.append(management.get(url).json())
    hours = [item["hour"][11:13] for page in pages for item in page["items"]]
    assert hours == ["12", "12", "13", "14", "14"]
    back = management.get(pages[-1]["previous"]).json()
    assert back["items"] == pages[-2]["items"]


def test_rows_are_narrowed_by_name(management: Client) -> None:
    summarized.reliability(NOON, BILLING, DELIVERED=1)
    summarized.reliability(NOON, MAILER, DELIVERED=2)
    [item] = read(management, f"summaries/reliability?{TODAY}&subscriber=Mailer")["items"]
    assert item["delivered"] == 2


def test_without_a_range_it_is_the_last_day(management: Client) -> None:
    row = summarized.reliability(NOON, BILLING, DELIVERED=1)
    assert read(management, "summaries/reliability")["items"] == []
    assert read(management, "summaries/reliability?from=2000-01-01T00:00:00Z")["items"] != []
    assert Reliability.objects.get() == row


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
def test_what_is_no_summary_is_not_found(management: Client, path: str) -> None:
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


def test_a_run_can_be_asked_for(storage: None, management: Client) -> None:
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
