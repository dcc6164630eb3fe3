"""What the summaries say of a range, for all subscribers and for one."""

import datetime as dt
from collections import Counter, defaultdict

import pytest
from django.db import models as django_models

from analytics.figures.ordering import audit, findings, highest_backlog
from analytics.figures.selection import Selection
from analytics.figures.success import Failing, Totals, failing_endpoints, outcomes, totals
from analytics.figures.traffic import (
    NAMED,
    balance,
    histograms,
    latencies,
    latency,
    messages_and_bytes,
    messages_by_publisher,
    messages_by_sender,
    shares,
)
from analytics.models import AuditFinding, Backlog, EndpointShare, Latency, Reliability, SenderLoad, Volume
from analytics.pipeline import tables
from analytics.pipeline.job import DAY
from analytics.pipeline.quantiles import bucket_of
from analytics.ranges import Range, day_of
from analytics.summaries import SUMMARIES
from tests.support import stored_summaries
from tests.support.stored_summaries import BILLING, CREATED, HOUR, MAILER, NOON, TODAY

pytestmark = pytest.mark.django_db
ALL, THEIRS = Selection(TODAY), Selection(TODAY, subscriber_id=1)
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
    assert {summary.table for summary in SUMMARIES.values()} == {*tables.GOLD}
    for name, summary in SUMMARIES.items():
        found = {field.name: type(field) for field in summary.model._meta.fields if not field.primary_key}
        assert found == {column: FIELDS[kind] for column, kind in summary.columns.items()}, name
        assert summary.model._meta.db_table == f"analytics_{name}"


def test_outcomes_are_added_up_step_by_step() -> None:
    stored_summaries.reliability(NOON, BILLING, DELIVERED=3, REJECTED=1)
    stored_summaries.reliability(NOON, MAILER, DELIVERED=2)
    stored_summaries.reliability(NOON + HOUR, BILLING, REDUNDANT=1)
    assert outcomes(ALL) == {(NOON, "DELIVERED"): 5, (NOON, "REJECTED"): 1, (NOON + HOUR, "REDUNDANT"): 1}
    assert outcomes(THEIRS)[NOON, "DELIVERED"] == 3


def test_a_week_is_added_up_day_by_day() -> None:
    week = Range(TODAY.start - dt.timedelta(days=6), TODAY.end)
    stored_summaries.reliability(NOON, BILLING, DELIVERED=3)
    stored_summaries.reliability(NOON + HOUR, BILLING, DELIVERED=4)
    assert outcomes(Selection(week)) == {(TODAY.start, "DELIVERED"): 7}


def test_what_is_outside_the_range_does_not_count() -> None:
    stored_summaries.reliability(TODAY.start - HOUR, BILLING, DELIVERED=1)
    stored_summaries.reliability(TODAY.end, BILLING, DELIVERED=1)
    assert totals(ALL) == Totals(0, 0, 0, 0)
    assert (totals(ALL).success_rate, totals(ALL).first_attempt_rate) == (None, None)


def test_the_success_rate_is_of_the_eligible() -> None:
    stored_summaries.reliability(NOON, BILLING, DELIVERED=6, REJECTED=2, REDUNDANT=4)
    assert (totals(ALL).success_rate, totals(ALL).first_attempt_rate) == (0.75, 0.375)


def test_quantiles_are_those_of_all_that_was_delivered() -> None:
    stored_summaries.latency(NOON, {bucket_of(10): 50})
    stored_summaries.latency(NOON + HOUR, {bucket_of(1000): 50})
    stored_summaries.latency(NOON, {bucket_of(50_000): 9}, measure="attempt")
    found = histograms(ALL)
    whole = latency(found)
    assert whole is not None
    assert whole.p50 == pytest.approx(10, rel=0.01)
    assert whole.p95 == pytest.approx(1000, rel=0.01)
    assert latencies(found)[NOON].p99 == pytest.approx(10, rel=0.01)
    assert latency(histograms(Selection(TODAY, subscriber_id=2))) is None


def test_the_backlog_is_the_most_that_waited_at_one_moment() -> None:
    for minutes, whose, waiting in ((0, BILLING, 5), (0, MAILER, 7), (5, BILLING, 9), (60, MAILER, 1)):
        stored_summaries.backlog(NOON + dt.timedelta(minutes=minutes), whose, waiting)
    assert highest_backlog(ALL) == {NOON: 12, NOON + HOUR: 1}
    assert highest_backlog(THEIRS) == {NOON: 9}


@pytest.mark.parametrize("days", [1, 28])
def test_the_totals_of_all_are_what_the_subscribers_come_to(days: int) -> None:
    everyone = (BILLING, MAILER, {"subscriber_id": None, "subscriber": ""})
    for number in range(36):
        at, whose = NOON + HOUR * (number % 4 - 30 * (number % 3)), everyone[number // 3 % 3]
        stored_summaries.reliability(
            at, whose, DELIVERED=number, **{"REJECTED": 1, "REDUNDANT": 2} if number % 5 else {}
        )
        stored_summaries.latency(at, {number % 7: number + 1, -1: 1}, whose=whose)
        stored_summaries.backlog(at + 5 * number % 60 * dt.timedelta(minutes=1), whose, number)
    asked = Range(TODAY.end - days * DAY, TODAY.end)
    assert outcomes(Selection(asked)) == plain_outcomes(asked)
    assert totals(Selection(asked)) == plain_totals(asked)
    assert histograms(Selection(asked)) == plain_histograms(asked)
    assert highest_backlog(Selection(asked)) == plain_backlog(asked)


def step_of(at: dt.datetime, asked: Range) -> dt.datetime:
    return at.replace(minute=0) if asked.step == "hour" else day_of(at)


def plain_outcomes(asked: Range) -> dict[tuple[dt.datetime, str], int]:
    sums = Counter[tuple[dt.datetime, str]]()
    for one in Reliability.objects.filter(hour__gte=asked.start):
        sums.update({(step_of(one.hour, asked), status): number for status, number in one.by_status.items()})
    return sums


def plain_totals(asked: Range) -> Totals:
    found = [*Reliability.objects.filter(hour__gte=asked.start)]
    return Totals(*(sum(getattr(one, name) for one in found) for name in Totals.__dataclass_fields__))


def plain_histograms(asked: Range) -> dict[dt.datetime, dict[int, int]]:
    sums = defaultdict[dt.datetime, Counter[int]](Counter)
    for one in Latency.objects.filter(hour__gte=asked.start):
        sums[step_of(one.hour, asked)].update({int(bucket): number for bucket, number in one.histogram.items()})
    return {**sums}


def plain_backlog(asked: Range) -> dict[dt.datetime, int]:
    moments, highest = Counter[dt.datetime](), Counter[dt.datetime]()
    for one in Backlog.objects.filter(at__gte=asked.start):
        moments[one.at] += one.deliveries
    for at, waiting in moments.items():
        highest[step_of(at, asked)] = max(highest[step_of(at, asked)], waiting)
    return highest


def test_volume_is_told_by_publisher() -> None:
    for publisher, messages in (("shop", 2), ("crm", 3), ("shop", 4)):
        published(publisher, messages)
    assert messages_by_publisher(ALL) == {(NOON, "shop"): 6, (NOON, "crm"): 3}
    assert messages_and_bytes(ALL) == (9, 90)


def test_of_many_publishers_the_busiest_are_named() -> None:
    for number in range(NAMED + 2):
        published(f"publisher {number}", 10 - number)
    published("", 100, NOON + HOUR)
    found = messages_by_publisher(ALL)
    assert found.pop((NOON + HOUR, "")) == 100, "management keys"
    named: dict[tuple[dt.datetime, str | None], int] = {
        (NOON, f"publisher {number}"): 10 - number for number in range(NAMED - 1)
    }
    assert found == {**named, (NOON, None): 5 + 4 + 3}


def published(publisher: str, messages: int, hour: dt.datetime = NOON) -> None:
    counts = {"messages": messages, "bytes": messages * 10, "deliveries": 0}
    Volume.objects.create(hour=hour, publisher=publisher, **CREATED, **counts)


def test_the_balance_is_the_busiest_over_the_mean() -> None:
    for sender, messages in enumerate((10, 10, 10, 10, 20)):
        SenderLoad.objects.create(hour=NOON, sender=sender, messages=messages, deliveries=0)
    assert balance(messages_by_sender(ALL)) == pytest.approx(20 / 12)
    assert balance({}) is None


def test_shares_are_of_what_the_group_delivered() -> None:
    for subscription_id, delivered in ((4, 3), (5, 1)):
        EndpointShare.objects.create(
            **{"hour": NOON, "group_of": 4, "subscription_id": subscription_id, **BILLING, "event_type": "Render"},
            endpoint="https://a.example",
            deliveries=4,
            delivered=delivered,
            redundant=4 - delivered,
        )
    assert [(one.subscription_id, one.delivered, one.delivered_of_group) for one in shares(ALL)] == [
        (4, 3, 4),
        (5, 1, 4),
    ]


def test_the_worst_endpoints_come_first_with_what_they_mostly_failed_of() -> None:
    stored_summaries.endpoint(NOON, 4, 30.0, **{"2xx": 1, "503": 3})
    stored_summaries.endpoint(NOON + HOUR, 4, 60.0, **{"503": 1, "4xx": 2})
    stored_summaries.endpoint(NOON, 5, **{"4xx": 1})
    stored_summaries.endpoint(NOON, 6, **{"2xx": 9})
    stored_summaries.endpoint(NOON, None, **{"timed out": 2})
    worst, replies, least = failing_endpoints(ALL)
    assert worst == Failing(4, "Billing", "https://4.example", 7, 2, 6, 90.0, {"2xx": 1, "503": 4, "4xx": 2})
    assert worst.failure_rate == pytest.approx(6 / 7)
    assert worst.commonest == "503"
    assert (replies.subscription_id, replies.commonest, least.subscription_id) == (None, "timed out", 5)


def test_what_has_no_explanation_comes_first() -> None:
    stored_summaries.store_one_row_of_each()
    explained = {"finding": "inversion", "explanation": "held", "delivery_id": 1, "other_id": 2}
    AuditFinding.objects.create(hour=NOON, at=NOON + HOUR, **BILLING, **explained)
    assert (audit(ALL).checked, audit(ALL).unexplained) == (10, 1)
    assert [one.explanation for one in findings(ALL)] == ["", "held"]
