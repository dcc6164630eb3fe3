"""What the summaries say of a range, for all subscribers and for one."""

import datetime as dt
from collections import Counter, defaultdict

import pytest
from django.db import models as django_models

from analytics.admin.sections import ordering_audit, queue_balance
from analytics.dashboard_queries import (
    DELETED,
    FAILING_ENDPOINTS,
    HIGHEST_BACKLOG,
    MAX_PUBLISHERS,
    MESSAGES_BY_PUBLISHER,
    SHARES,
    Quantiles,
    Selection,
)
from analytics.models import MODELS, rows_of
from analytics.pipeline import tables
from analytics.pipeline.job import DAY, midnight
from analytics.windows import Range
from tests.support import stored_summaries
from tests.support.stored_summaries import BILLING, CREATED, HOUR, MAILER, NOON, TODAY, bucket_of

pytestmark = pytest.mark.django_db
COUNTS = ("deliveries", "eligible", "delivered", "first_attempt")
FIELDS = {
    "timestamp": django_models.DateTimeField,
    "date": django_models.DateField,
    "string": django_models.TextField,
    "int": django_models.IntegerField,
    "long": django_models.BigIntegerField,
    "double": django_models.FloatField,
    "map<string,long>": django_models.JSONField,
    "map<int,long>": django_models.JSONField,
}


def test_every_summary_of_the_lake_has_a_table_with_its_columns() -> None:
    for table, model in MODELS.items():
        found = {field.name: type(field) for field in model._meta.fields if not field.primary_key}
        assert found == {column: FIELDS[kind] for column, kind in table.types.items()}, table
        assert model._meta.db_table == f"analytics_{table.name}"


def chosen(subscriber_id: int | None = None) -> Selection:
    return Selection(TODAY, subscriber_id)


def test_outcomes_are_added_up_step_by_step() -> None:
    stored_summaries.reliability(NOON, BILLING, DELIVERED=3, REJECTED=1)
    stored_summaries.reliability(NOON, MAILER, DELIVERED=2)
    stored_summaries.reliability(NOON + HOUR, BILLING, REDUNDANT=1)
    assert chosen().outcomes == {(NOON, "DELIVERED"): 5, (NOON, "REJECTED"): 1, (NOON + HOUR, "REDUNDANT"): 1}
    assert chosen(1).outcomes[NOON, "DELIVERED"] == 3


def test_a_week_is_added_up_day_by_day() -> None:
    week = Range(TODAY.start - dt.timedelta(days=6), TODAY.end)
    stored_summaries.reliability(NOON, BILLING, DELIVERED=3)
    stored_summaries.reliability(NOON + HOUR, BILLING, DELIVERED=4)
    assert Selection(week).outcomes == {(TODAY.start, "DELIVERED"): 7}


def test_rows_outside_the_range_do_not_count() -> None:
    stored_summaries.reliability(TODAY.start - HOUR, BILLING, DELIVERED=1)
    stored_summaries.reliability(TODAY.end, BILLING, DELIVERED=1)
    assert chosen().totals._asdict() == dict.fromkeys(COUNTS, 0)


def test_quantiles_cover_all_deliveries() -> None:
    stored_summaries.latency(NOON, {bucket_of(10): 50})
    stored_summaries.latency(NOON + HOUR, {bucket_of(1000): 50})
    stored_summaries.latency(NOON, {bucket_of(50_000): 9}, measure="attempt")
    found = chosen().histograms
    whole = chosen().latency
    assert whole is not None
    assert whole.p50 == pytest.approx(10, rel=0.01)
    assert whole.p95 == pytest.approx(1000, rel=0.01)
    assert Quantiles.of(found[NOON]).p99 == pytest.approx(10, rel=0.01)
    assert chosen(2).latency is None


def test_the_backlog_is_the_highest_count_at_one_moment() -> None:
    for minutes, owner, waiting in ((0, BILLING, 5), (0, MAILER, 7), (5, BILLING, 9), (60, MAILER, 1)):
        stored_summaries.backlog(NOON + dt.timedelta(minutes=minutes), owner, waiting)
    assert dict(chosen().query(HIGHEST_BACKLOG)) == {NOON: 12, NOON + HOUR: 1}
    assert dict(chosen(1).query(HIGHEST_BACKLOG)) == {NOON: 9}


@pytest.mark.parametrize("days", [1, 28])
def test_totals_equal_the_sums_over_subscribers(days: int) -> None:
    everyone = (BILLING, MAILER, {"subscriber_id": None, "subscriber": ""})
    for number in range(36):
        at, owner = NOON + HOUR * (number % 4 - 30 * (number % 3)), everyone[number // 3 % 3]
        stored_summaries.reliability(
            at, owner, DELIVERED=number, **{"REJECTED": 1, "REDUNDANT": 2} if number % 5 else {}
        )
        stored_summaries.latency(at, {number % 7: number + 1, -1: 1}, owner=owner)
        stored_summaries.backlog(at + 5 * number % 60 * dt.timedelta(minutes=1), owner, number)
    asked = Range(TODAY.end - days * DAY, TODAY.end)
    assert Selection(asked).outcomes == plain_outcomes(asked)
    assert Selection(asked).totals._asdict() == plain_totals(asked)
    assert Selection(asked).histograms == plain_histograms(asked)
    assert dict(Selection(asked).query(HIGHEST_BACKLOG)) == plain_backlog(asked)


def step_of(at: dt.datetime, asked: Range) -> dt.datetime:
    return at.replace(minute=0) if asked.step == "hour" else midnight(at.date())


def plain_outcomes(asked: Range) -> dict[tuple[dt.datetime, str], int]:
    sums = Counter[tuple[dt.datetime, str]]()
    for one in rows_of(tables.RELIABILITY).filter(hour__gte=asked.start):
        sums.update({(step_of(one.hour, asked), status): number for status, number in one.by_status.items()})
    return sums


def plain_totals(asked: Range) -> dict[str, int]:
    found = [*rows_of(tables.RELIABILITY).filter(hour__gte=asked.start)]
    return {name: sum(getattr(one, name) for one in found) for name in COUNTS}


def plain_histograms(asked: Range) -> dict[dt.datetime, dict[int, int]]:
    sums = defaultdict[dt.datetime, Counter[int]](Counter)
    for one in rows_of(tables.LATENCY).filter(hour__gte=asked.start):
        sums[step_of(one.hour, asked)].update({int(bucket): number for bucket, number in one.histogram.items()})
    return {**sums}


def plain_backlog(asked: Range) -> dict[dt.datetime, int]:
    moments, highest = Counter[dt.datetime](), Counter[dt.datetime]()
    for one in rows_of(tables.BACKLOG).filter(at__gte=asked.start):
        moments[one.at] += one.deliveries
    for at, waiting in moments.items():
        highest[step_of(at, asked)] = max(highest[step_of(at, asked)], waiting)
    return highest


def test_volume_is_shown_by_publisher() -> None:
    for publisher, messages in (("shop", 2), ("crm", 3), ("shop", 4)):
        published(publisher, messages)
    assert sorted(chosen().query(MESSAGES_BY_PUBLISHER)) == [(NOON, "crm", 3), (NOON, "shop", 6)]


def test_deleted_publishers_are_no_management_keys() -> None:
    for publisher_id, messages in ((None, 2), (7, 3), (8, 4)):
        published("", messages, publisher_id=publisher_id)
    assert sorted(chosen().query(MESSAGES_BY_PUBLISHER)) == [(NOON, "", 2), (NOON, DELETED, 7)]


def test_of_many_publishers_the_busiest_are_named() -> None:
    for number in range(MAX_PUBLISHERS + 2):
        published(f"publisher {number}", 10 - number)
    published("", 100, NOON + HOUR)
    found = {(at, publisher): number for at, publisher, number in chosen().query(MESSAGES_BY_PUBLISHER)}
    assert found.pop((NOON + HOUR, "")) == 100, "management keys"
    named: dict[tuple[dt.datetime, str | None], int] = {
        (NOON, f"publisher {number}"): 10 - number for number in range(MAX_PUBLISHERS - 1)
    }
    assert found == {**named, (NOON, None): 5 + 4 + 3}


def published(publisher: str, messages: int, hour: dt.datetime = NOON, *, publisher_id: int | None = None) -> None:
    counts = {"messages": messages, "bytes": messages * 10, "deliveries": 0}
    rows_of(tables.VOLUME).create(hour=hour, publisher=publisher, publisher_id=publisher_id, **CREATED, **counts)


def test_a_sender_that_took_nothing_is_one_of_them() -> None:
    for sender in (0, 1):
        rows_of(tables.SENDERS).create(hour=NOON, sender=sender, messages=3, deliveries=3)
    assert queue_balance(chosen()).note == "The busiest sender has 2.50 times the mean."


def test_shares_are_of_what_the_group_delivered() -> None:
    for subscription_id, owner, delivered in ((4, BILLING, 3), (5, MAILER, 1)):
        row = {**owner, "hour": NOON, "group_of": 4, "subscription_id": subscription_id, "event_type": "Render"}
        counts = {"deliveries": 4, "delivered": delivered, "redundant": 4 - delivered}
        rows_of(tables.SHARES).create(**row, **counts, endpoint="https://a.example")
    for subscriber_id, shares in ((None, [(4, 3, 4), (5, 1, 4)]), (2, [(5, 1, 4)])):
        found = chosen(subscriber_id).query(SHARES)
        assert [(one.subscription_id, one.delivered, one.of_group) for one in found] == shares


def test_the_worst_endpoints_come_first_with_their_most_common_failure() -> None:
    stored_summaries.endpoint(NOON, 4, 30.0, **{"2xx": 1, "503": 3})
    stored_summaries.endpoint(NOON + HOUR, 4, 60.0, **{"503": 1, "4xx": 2})
    stored_summaries.endpoint(NOON, 5, **{"4xx": 1})
    stored_summaries.endpoint(NOON, 6, **{"2xx": 9})
    stored_summaries.endpoint(NOON, None, **{"timed out": 2})
    worst, replies, least = chosen().query(FAILING_ENDPOINTS)
    assert worst[:7] == (4, "Billing", "https://4.example", 7, 2, 6, 90.0)
    assert worst.most_common_failure == "503"
    assert (replies.subscription_id, replies.most_common_failure, least.subscription_id) == (None, "timed out", 5)


def test_unexplained_findings_come_first() -> None:
    stored_summaries.store_one_row_of_each()
    explained = {"finding": "inversion", "explanation": "held", "delivery_id": 1, "other_id": 2}
    rows_of(tables.FINDINGS).create(hour=NOON, at=NOON + HOUR, **BILLING, **explained)
    assert (chosen().audit.checked, chosen().audit.unexplained) == (10, 1)
    page = ordering_audit(chosen()).table
    assert 0 < page.index("unexplained") < page.index("held")
