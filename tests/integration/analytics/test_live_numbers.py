"""Live numbers: sums of the last minutes, the backlog beside them, and the page that shows both."""

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from analytics import live_numbers
from analytics.live_numbers import DAY_MINUTES, HOUR_MINUTES, Numbers
from analytics.pipeline.quantiles import middle_of
from delivery.models import Delivery, Line, MinuteCount, MinuteTotal
from delivery.status import backlog
from delivery.status.backlog import Backlog, backlogs
from delivery.status.line_status import MAX_COUNTED
from subscriptions.models import Subscription
from tests.support import factories
from tests.support.api import client_of
from tests.support.database import execute
from tests.support.query_plans import explained_statements
from tests.support.stored_summaries import bucket_of

pytestmark = pytest.mark.django_db

MINUTE, HOUR, DAY = dt.timedelta(minutes=1), dt.timedelta(hours=1), dt.timedelta(days=1)


def last_minute() -> dt.datetime:
    return timezone.now().replace(second=0, microsecond=0) - MINUTE


NEWEST = last_minute()


def minute(
    minutes_ago: int,
    *,
    of: Subscription | None = None,
    took: dict[int, int] | None = None,
    failed: int = 0,
    newest: dt.datetime = NEWEST,
) -> None:
    """Count deliveries that took so many milliseconds, and others that failed, as the job would have."""
    times = {bucket_of(ms): number for ms, number in (took or {}).items()}
    delivered, at = sum(times.values()), newest - minutes_ago * MINUTE
    counts = {"deliveries": delivered + failed, "delivered": delivered, "eligible": delivered + failed}
    counted: dict[str, Any] = {**counts, "buckets": [*times], "bucket_counts": [*times.values()], "minute": at}
    MinuteTotal.objects.create(**counted)
    owner = {"subscriber": of.subscriber, "event_type": of.event_type} if of else {}
    MinuteCount.objects.create(**counted, **owner)


def waiting(subscription: Subscription, number: int, **fields: Any) -> list[Delivery]:
    line = Line.objects.get(subscriber=subscription.subscriber, lane="main")
    values = {"subscription": subscription, "line": line, "size": 1, **fields}
    return [Delivery.objects.create(**values) for _ in range(number)]


def cells(admin: Client, query: str = "") -> list[list[str]]:
    """Return the rows of the page, with the texts of its cells."""
    return [[str(cell) for cell in row] for row in admin.get(f"/admin/analytics/run/live/{query}").context["rows"]]


def names(admin: Client, query: str) -> list[str]:
    return [row[0].partition(">")[2].partition("<")[0] for row in cells(admin, query)]


@pytest.mark.behaviour("11.8")
def test_minutes_that_are_not_over_are_ignored_after_the_clock_was_set_back() -> None:
    newest = last_minute()
    for ago in (1, 0, -1, -30):
        minute(ago, newest=newest)
    assert live_numbers.last_minute() == newest


def test_minutes_add_up() -> None:
    assert live_numbers.last_minute() is None
    minute(DAY_MINUTES, took={1: 7})
    minute(HOUR_MINUTES, took={10: 1})
    minute(HOUR_MINUTES - 1, took={10: 10, 100: 80}, failed=1)
    minute(0, took={100: 4, 1000: 5})
    assert live_numbers.last_minute() == NEWEST
    assert live_numbers.total(NEWEST, 1) == Numbers(1, 9, 9, 9, {bucket_of(100): 4, bucket_of(1000): 5})
    hour = live_numbers.total(NEWEST, HOUR_MINUTES)
    assert (hour.deliveries, hour.per_minute, hour.success) == (100, 100 / 2, 0.99), "of the minutes counted"
    assert hour.took == tuple(middle_of(bucket_of(ms)) for ms in (100, 1000, 1000))
    assert live_numbers.total(NEWEST, DAY_MINUTES).deliveries == 101
    assert live_numbers.total(NEWEST + 2 * MINUTE, 1) == Numbers(1)


def test_numbers_of_each_subscriber() -> None:
    shop, store = factories.subscription(), factories.subscription()
    minute(HOUR_MINUTES, of=shop, took={1: 1})
    minute(2, of=shop, took={10: 1}, failed=1)
    minute(1, of=store, took={10: 3})
    minute(0)
    by_subscriber = live_numbers.by_subscriber(NEWEST, [shop.subscriber_id, store.subscriber_id])
    assert (by_subscriber.since, by_subscriber.until) == (NEWEST - 2 * MINUTE, NEWEST + MINUTE)
    assert by_subscriber.minutes == 3, "those that were counted"
    assert by_subscriber.numbers == {
        shop.subscriber_id: Numbers(3, 2, 1, 2, {bucket_of(10): 1}),
        store.subscriber_id: Numbers(3, 3, 3, 3, {bucket_of(10): 3}),
    }
    assert live_numbers.counts_by_subscriber(NEWEST).of_all.numbers == {
        shop.subscriber_id: Numbers(3, 2, 1, 2),
        store.subscriber_id: Numbers(3, 3, 3, 3),
        0: Numbers(3, 0, 0, 0),
    }


def test_a_subscriber_reads_its_own_statistics() -> None:
    shop, store = factories.subscription(), factories.subscription()
    path = f"/api/v1/subscribers/{shop.subscriber.name}/statistics"
    assert client_of(store.subscriber).get(path).status_code == 404
    empty = client_of(shop.subscriber).get(path).json()
    assert (empty["deliveries"], empty["success"], empty["p95_ms"], empty["event_types"]) == (0, None, None, [])
    assert (empty["since"], empty["until"]) == (None, None), "no minute was counted"
    minute(HOUR_MINUTES, of=shop, took={10: 1})
    minute(2, of=shop, took={10: 3}, failed=1)
    minute(1, of=store, took={100: 3})
    minute(0, of=factories.subscription(shop.subscriber), took={10: 4})
    waiting(store, 1)
    first, _ = waiting(shop, 2)
    found = client_of(shop.subscriber).get(path).json()
    ms = middle_of(bucket_of(10))
    ended = {"deliveries": 4, "delivered": 3, "failed": 1, "success": 0.75, "p50_ms": ms, "p95_ms": ms, "p99_ms": ms}
    by_event_type = {one["delivered"]: one for one in found.pop("event_types")}
    assert by_event_type[3] == {**ended, "event_type": shop.event_type and shop.event_type.name}
    assert found == {
        **ended,
        "deliveries": 8,
        "delivered": 7,
        "success": 7 / 8,
        "since": iso(NEWEST - 2 * MINUTE),
        "until": iso(NEWEST + MINUTE),
        "waiting": 2,
        "is_truncated": False,
        "oldest_since": iso(first.created_at),
    }
    of_two_days = client_of(shop.subscriber).get(path, {"hours": 48}).json()
    assert (of_two_days["deliveries"], of_two_days["since"]) == (9, iso(NEWEST - HOUR))
    assert client_of(shop.subscriber).get(path, {"hours": 49}).status_code == 400


def iso(time: dt.datetime) -> str:
    return time.isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(("max_rows", "minutes"), [(3, 3), (2, 2), (1, 1), (0, 1)])
def test_where_there_are_many_rows_fewer_minutes_are_added_up(
    monkeypatch: pytest.MonkeyPatch, max_rows: int, minutes: int
) -> None:
    for ago in range(3):
        minute(ago)
    statement = live_numbers.SINCE.replace(str(live_numbers.MAX_ROWS), str(max_rows))
    monkeypatch.setattr(live_numbers, "SINCE", statement)
    assert live_numbers.counts_by_subscriber(NEWEST).of_all.minutes == minutes


def test_the_backlog_is_what_waits_without_what_is_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    shop, store = factories.subscription(), factories.subscription()
    other = factories.subscription(shop.subscriber)
    later = timezone.now() + dt.timedelta(hours=1)
    waiting(shop, 1, waits_for="START", not_before=later)
    waiting(shop, 1, not_before=later)
    first, *_ = waiting(shop, 3)
    waiting(other, 2, waits_for="RETRY", due_at=later)
    waiting(store, 1, waits_for="RELEASE", status="HELD")
    waiting(factories.subscription(), 1, waits_for="START", not_before=later)
    delayed = factories.subscription()
    due = waiting(delayed, 1, created_at=later - DAY, not_before=later - HOUR)[0]
    behind = factories.subscription()
    waiting(behind, backlog.FEW + 1, not_before=later)
    (alone,) = waiting(behind, 1)
    assert {key: (one.waiting, one.is_cut) for key, one in backlogs().items()} == {
        shop.subscriber_id: (5, False),
        store.subscriber_id: (1, False),
        delayed.subscriber_id: (1, False),
        behind.subscriber_id: (1, False),
    }
    assert backlogs()[shop.subscriber_id].oldest_since == first.created_at
    assert backlogs()[delayed.subscriber_id].oldest_since == due.not_before
    waiting(shop, 2 * backlog.FEW)
    waiting(other, 2 * backlog.FEW)
    assert backlogs()[shop.subscriber_id][:2] == (4 * backlog.FEW + 5, False)
    for limit, counted in ((23, 23 // 3), (9, backlog.FEW)):  # three have more than a few
        statement = backlog.BACKLOGS.replace(f"{backlog.MAX_COUNTED_IN_ALL} /", f"{limit} /")
        with monkeypatch.context() as patch:
            patch.setattr(backlog, "BACKLOGS", statement)
            found = backlogs()
        line_id = first.line_id or 0
        expected = Backlog(2 * counted, True, first.created_at, line_id, False, first.created_at)
        assert found[shop.subscriber_id] == expected
        assert (found[behind.subscriber_id].waiting, found[behind.subscriber_id].oldest_since) == (1, alone.created_at)


FILL = """
INSERT INTO delivery_open (line_id, subscription_id, status, size, waits_for, due_at)
SELECT %s, %s, 'PENDING', 1, kind, CASE kind WHEN 'RETRY' THEN now() END
  FROM generate_series(1, 3000) n, unnest('{TURN,RETRY}'::text[]) AS k (kind)
"""


def test_no_backlog_reads_what_waits_for_others_or_more_than_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, quiet = factories.subscription(), factories.subscription()
    execute(FILL, [Line.objects.get(subscriber=busy.subscriber, lane="main").pk, busy.pk])
    waiting(quiet, 1)
    with explained_statements(monkeypatch) as found:
        assert backlogs([quiet.subscriber_id])[quiet.subscriber_id].waiting == 1
        assert backlogs()[busy.subscriber_id].is_cut
    of_one, of_all = [one.rows_read for one in found if one.statement == backlog.BACKLOGS]
    assert of_one < 10
    assert of_all < 2 * (MAX_COUNTED + 20)


def test_pages_and_scrapes_read_what_is_much_once_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CACHED_SECONDS", "MINUTE_SECONDS"):
        monkeypatch.setattr(live_numbers, name, 60)
    monkeypatch.setattr(live_numbers, "_read", {})
    assert (live_numbers.cached_backlogs(), live_numbers.cached_held_lines()) == ({}, [])
    assert live_numbers.counts_by_subscriber(NEWEST).of_published.numbers == {}
    shop = factories.subscription()
    waiting(shop, 1)
    minute(0, of=shop, failed=1)
    assert (live_numbers.cached_backlogs(), len(backlogs())) == ({}, 1)
    assert live_numbers.counts_by_subscriber(NEWEST).of_published.numbers == {}
    assert live_numbers.counts_by_subscriber(NEWEST + MINUTE).of_published.numbers != {}


def test_the_page_has_all_subscribers_and_sorts_them(admin: Client) -> None:
    assert names(admin, "") == []
    slow, quick, idle = (factories.subscription(factories.subscriber(name)) for name in ("slow", "quick", "idle"))
    minute(1, of=slow, took={900: 57}, failed=43)
    minute(0, of=quick, took={10: 118})
    waiting(idle, 2)
    assert cells(admin, "?sort=-rate&q=QUI")[0][1:] == ["59.0", "100.00 %", "10 ms", "10 ms", "10 ms", "0", "-"]
    assert cells(admin, "?q=slow")[0][1:4] == ["50.0", "57.00 %", "900 ms"]
    assert "0 s ago" in cells(admin)[0][-1]
    for sort, expected in {
        "": ["idle", "quick", "slow"],
        "?sort=name": ["idle", "quick", "slow"],
        "?sort=-name": ["slow", "quick", "idle"],
        "?sort=-rate": ["quick", "slow", "idle"],
        "?sort=success": ["slow", "quick", "idle"],
        "?sort=-p95": ["slow", "quick", "idle"],
        "?sort=-waiting": ["idle", "quick", "slow"],
        "?sort=nonsense&page=99": ["idle", "quick", "slow"],
    }.items():
        assert names(admin, sort) == expected, sort


def test_a_subscriber_leads_to_its_event_types(admin: Client) -> None:
    shop = factories.subscription(event_type=factories.event_type("Shop.Paid"))
    minute(0, of=shop, took={10: 3})
    ((name, *numbers),) = cells(admin, f"?subscriber={shop.subscriber_id}")
    assert f'href="/admin/subscriptions/eventtype/{shop.event_type_id}/change/">Shop.Paid</a>' in name
    assert numbers == ["3.0", "100.00 %", "10 ms", "10 ms", "10 ms"]
    assert admin.get("/admin/analytics/run/live/?subscriber=999999").status_code == 404
    minute(HOUR_MINUTES, of=shop, took={10: 1})
    for hours, rate in (("", "3.0"), ("1", "3.0"), ("24", "2.0"), ("48", "2.0"), ("x", "3.0")):
        assert cells(admin, f"?subscriber={shop.subscriber_id}&hours={hours}")[0][1] == rate


def test_the_page_takes_as_many_queries_for_many_subscribers(admin: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(30):
        waiting(factories.subscription(), number % 3)
    minute(0)
    with django_assert_max_num_queries(12):
        admin.get("/admin/analytics/run/live/")
