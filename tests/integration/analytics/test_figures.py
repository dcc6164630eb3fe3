"""What the summaries say of a range, for all subscribers and for one."""

import datetime as dt
from collections import Counter, defaultdict
from typing import Any

import pytest

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
from analytics.models import rows_of
from analytics.pipeline import tables
from analytics.pipeline.job import DAY, midnight
from analytics.windows import Range
from tests.support import stored_summaries
from tests.support.stored_summaries import BILLING, CREATED, HOUR, MAILER, NOON, TODAY, bucket_of

pytestmark = pytest.mark.django_db
COUNTS = ("deliveries", "eligible", "delivered", "first_attempt")


def chosen(subscriber_id: int | None = None) -> Selection:
    return Selection(TODAY, subscriber_id)


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


@pytest.mark.parametrize("subscriber_id", [None, 1])
@pytest.mark.parametrize("days", [1, 28])
def test_figures_are_the_sums_by_hour_or_day(days: int, subscriber_id: int | None) -> None:
    everyone = (BILLING, MAILER, {"subscriber_id": None, "subscriber": ""})
    for number in range(36):
        at, owner = NOON + HOUR * (number % 4 - 30 * (number % 3)), everyone[number // 3 % 3]
        stored_summaries.reliability(
            at, owner, DELIVERED=number, **{"REJECTED": 1, "REDUNDANT": 2} if number % 5 else {}
        )
        stored_summaries.latency(at, {number % 7: number + 1, -1: 1}, owner=owner)
        stored_summaries.backlog(at + 5 * number % 60 * dt.timedelta(minutes=1), owner, number)
    found = Selection(Range(TODAY.end - days * DAY, TODAY.end), subscriber_id)
    ended = stored(tables.RELIABILITY, found)
    assert found.totals._asdict() == {name: sum(getattr(one, name) for one in ended) for name in COUNTS}
    outcomes, took = Counter[tuple[dt.datetime, str]](), defaultdict[dt.datetime, Counter[int]](Counter)
    for one in ended:
        outcomes.update({(step_of(one.hour, found), status): number for status, number in one.by_status.items()})
    assert found.outcomes == outcomes
    for one in stored(tables.LATENCY, found):
        took[step_of(one.hour, found)].update({int(bucket): number for bucket, number in one.histogram.items()})
    assert found.histograms == {**took}
    moments, highest = Counter[dt.datetime](), Counter[dt.datetime]()
    for one in stored(tables.BACKLOG, found):
        moments[one.at] += one.deliveries
    for at, waiting in moments.items():
        highest[step_of(at, found)] = max(highest[step_of(at, found)], waiting)
    assert dict(found.query(HIGHEST_BACKLOG)) == highest


def stored(table: tables.Table, chosen: Selection) -> list[Any]:
    """Return the rows of a selection, whose range has no later ones."""
    rows = [*rows_of(table).filter(**{f"{table.time}__gte": chosen.range.start})]
    return [one for one in rows if chosen.subscriber_id in {None, one.subscriber_id}]


def step_of(at: dt.datetime, chosen: Selection) -> dt.datetime:
    return at.replace(minute=0) if chosen.range.step == "hour" else midnight(at.date())


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
