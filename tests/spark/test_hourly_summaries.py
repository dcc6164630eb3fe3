"""What the numbers of an hour mean, each on a few rows."""

import datetime as dt
from dataclasses import replace

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from analytics.pipeline.job import Window
from analytics.pipeline.quantiles import bucket_of, middle_of
from analytics.pipeline.tables import (
    CALLBACKS_SUMMARY,
    ENDPOINTS,
    FINDINGS,
    LATENCY,
    RELIABILITY,
    SILVER_ATTEMPTS,
    SILVER_DELIVERIES,
    SILVER_MESSAGES,
    VOLUME,
)
from analytics.pipeline.transforms.hourly import HOURLY_SUMMARIES, endpoints, latency, reliability, volume
from analytics.pipeline.transforms.silver import silver
from analytics.vocabulary import vocabulary
from tests.frames import DAY, WINDOW, Row, at, facts, frame, rows_of, silver_of

WORDS = vocabulary()
ABC: Row = {"subscriber_id": 1, "subscriber": "ABC", "event_type_id": 7, "event_type": "Create", "kind": "TOPIC"}
ENDED: Row = {**ABC, "status": "DELIVERED", "attempts": 1, "fetches": 0, "finished_at": at("10:30")}
TRIED: Row = {
    **ABC,
    "subscription_id": 3,
    "endpoint": "https://abc.example",
    "number": 1,
    "started_at": at("10:00"),
    "ended_at": at("10:00:01"),
    "status_code": 200,
    "error_class": "2xx",
    "failed": False,
    "holds": False,
}
REFUSED: Row = {**TRIED, "status_code": 503, "error_class": "503", "failed": True, "holds": True}


def test_reliability_counts_what_ended_in_an_hour(spark: SparkSession) -> None:
    deliveries = [
        {**ENDED, "id": 1},
        {**ENDED, "id": 2, "attempts": 3},
        {**ENDED, "id": 3, "status": "REJECTED"},
        {**ENDED, "id": 4, "status": "CANCELLED", "attempts": 0},
        {**ENDED, "id": 5, "finished_at": at("11:00")},
        {**ENDED, "id": 6, "finished_at": None, "status": "PENDING"},
        {**ENDED, "id": 7, "kind": "MAILBOX", "attempts": 0, "fetches": 1},
        {**ENDED, "id": 8, "kind": "MAILBOX", "attempts": 0, "fetches": 2},
        {**ENDED, "id": 9, "kind": "MAILBOX", "attempts": 1, "fetches": 1, "status": "EXPIRED"},
    ]
    ten = {
        "deliveries": 4,
        "delivered": 2,
        "eligible": 3,
        "first_attempt": 1,
        "attempts": 5,
        "by_status": {"DELIVERED": 2, "REJECTED": 1, "CANCELLED": 1},
    }
    one = {"deliveries": 1, "delivered": 1, "eligible": 1, "first_attempt": 1, "attempts": 1}
    eleven = {**one, "by_status": {"DELIVERED": 1}}
    fetched = {"deliveries": 3, "delivered": 2, "eligible": 3, "first_attempt": 1, "attempts": 5, "kind": "MAILBOX"}
    fetched |= {"by_status": {"DELIVERED": 2, "EXPIRED": 1}}
    rows = [{"hour": at("10:00"), **ten}, {"hour": at("11:00"), **eleven}, {"hour": at("10:00"), **fetched}]
    assertDataFrameEqual(
        reliability(frame(spark, SILVER_DELIVERIES, deliveries), WORDS),
        frame(spark, RELIABILITY, [{**ABC, **row} for row in rows]),
    )


def test_what_ended_after_the_window_is_in_no_summary_of_what_ended(spark: SparkSession) -> None:
    """It may have its last status by the time it is read."""
    later = {**ENDED, "finished_at": None, "group_id": 5, "sender": 0, "subscription_id": 3}
    unended = silver_of(spark, deliveries=[{**later, "id": 1}, {**later, "id": 2, "kind": WORDS.reply_kind}])
    assert {table: rows_of(make(unended, WINDOW, WORDS)) for table, make in HOURLY_SUMMARIES.items()} == {
        table: [] for table in HOURLY_SUMMARIES
    }
    one_ended = silver_of(spark, deliveries=[{**later, "id": 1}, {**later, "id": 2, "finished_at": at("10:30")}])
    assert rows_of(HOURLY_SUMMARIES[FINDINGS](one_ended, WINDOW, WORDS)) == []


def test_statuses_and_kinds_that_are_new_show_up_by_themselves(spark: SparkSession) -> None:
    words = replace(
        WORDS, statuses=(*WORDS.statuses, "SHREDDED", "LOST"), kinds=("CARRIER", *WORDS.kinds), neutral=("SHREDDED",)
    )
    given = facts(
        spark,
        subscriptions=[{"id": 3, "kind": "CARRIER"}],
        deliveries=[
            {"id": n, "subscription_id": 3, "status": status, "attempts": 1, "finished_at": at("10:30")}
            for n, status in enumerate(["SHREDDED", "LOST", "LOST", "DELIVERED"])
        ],
    )
    (row,) = rows_of(HOURLY_SUMMARIES[RELIABILITY](silver(given, words), WINDOW, words))
    assert (row["kind"], row["by_status"]) == ("CARRIER", {"SHREDDED": 1, "LOST": 2, "DELIVERED": 1})
    assert (row["deliveries"], row["eligible"], row["delivered"]) == (4, 3, 1)


def test_latency_tells_how_long_delivering_and_each_attempt_took(spark: SparkSession) -> None:
    deliveries = [{**ENDED, "id": ms, "latency_ms": ms} for ms in range(1, 21)]
    others = [{**ENDED, "id": 98, "status": "REJECTED", "latency_ms": 1}, {**ENDED, "id": 99, "status": "HELD"}]
    fetched = [{**ENDED, "id": 100, "latency_ms": 0, "kind": "MAILBOX"}]
    attempts = [{**REFUSED, "id": 1, "duration_ms": 0}]
    made = latency(
        frame(spark, SILVER_DELIVERIES, [*deliveries, *others, *fetched]),
        frame(spark, SILVER_ATTEMPTS, attempts),
        WORDS,
    )
    took = {f"p{share}_ms": middle_of(bucket_of(ms)) for share, ms in ((50, 10), (90, 18), (95, 19), (99, 20))}
    histogram = {bucket_of(ms): 1 for ms in range(1, 21)}
    delivered = {"measure": "delivery", "count": 20, "max_ms": 20, "histogram": histogram, **took}
    nothing = {"p50_ms": 0.0, "p90_ms": 0.0, "p95_ms": 0.0, "p99_ms": 0.0, "max_ms": 0, "histogram": {-1: 1}}
    tried = {"measure": "attempt", "count": 1, **nothing}
    waited = {"measure": "mailbox", "kind": "MAILBOX", "count": 1, **nothing}
    wanted = [{**ABC, "hour": at("10:00"), **row} for row in (delivered, tried, waited)]
    assertDataFrameEqual(made, frame(spark, LATENCY, wanted))


def test_endpoints_tell_what_was_answered_and_how_long_nothing_could_overtake(spark: SparkSession) -> None:
    window = Window(at("10:00"), at("13:00"))
    attempts = [
        {**REFUSED, "id": 1, "next_at": at("10:00:31.5")},
        {**REFUSED, "id": 2, "number": 2, "ended_at": at("10:59:50"), "next_at": at("11:30")},
        {**REFUSED, "id": 3, "number": 3, "ended_at": at("10:59:55"), "next_at": at("11:00")},
        {**REFUSED, "id": 4, "number": 4, "ended_at": at("11:00:05"), "next_at": None},
        {**TRIED, "id": 5, "next_at": at("10:30")},
        {**TRIED, "id": 6, "status_code": 500, "error_class": "5xx", "failed": True, "next_at": at("10:30")},
    ]
    row = {
        **{name: value for name, value in ABC.items() if name != "event_type_id"},
        "hour": at("10:00"),
        "subscription_id": 3,
        "endpoint": "https://abc.example",
        "attempts": 6,
        "retries": 3,
        "failures": 5,
        "held_seconds": 30.5 + 10 + 5,
        "by_class": {"503": 4, "2xx": 1, "5xx": 1},
    }
    none = {"attempts": 0, "retries": 0, "failures": 0, "by_class": {}}
    rows = [
        row,
        {**row, **none, "hour": at("11:00"), "held_seconds": 30 * 60 + 3595.0},
        {**row, **none, "hour": at("12:00"), "held_seconds": 3600.0},
    ]
    assertDataFrameEqual(endpoints(frame(spark, SILVER_ATTEMPTS, attempts), window), frame(spark, ENDPOINTS, rows))


def test_volume_counts_what_was_published_and_no_replies(spark: SparkSession) -> None:
    names = {"event_type_id": 7, "event_type": "Create", "publisher_id": 2, "publisher": "CRM", "kind": "TOPIC"}
    message = {**names, "size": 100, "deliveries_count": 3, "outcome": "ROUTED", "published_at": at("10:30")}
    messages = [
        {**message, "id": 1},
        {**message, "id": 2, "size": 11, "deliveries_count": 0, "outcome": "UNROUTED"},
        {**message, "id": 3, "answers": 1, "kind": "CALLBACK"},
    ]
    summed = {"messages": 2, "bytes": 111, "deliveries": 3, "by_outcome": {"ROUTED": 1, "UNROUTED": 1}}
    assertDataFrameEqual(
        volume(frame(spark, SILVER_MESSAGES, messages)),
        frame(spark, VOLUME, [{**names, **summed, "hour": at("10:00")}]),
    )


def test_callbacks_are_asked_answered_and_forwarded(spark: SparkSession) -> None:
    reply = {"event_type_id": 7, "created_at": at("11:00"), "attempts": 1}
    given = facts(
        spark,
        event_types=[{"id": 7, "name": "Create", "kind": "QUEUE"}],
        callbacks=[{"id": n, "event_type_id": 7, "created_at": at("10:00")} for n in (1, 2, 2, 3)],
        messages=[
            {"id": 1, "event_type_id": 7, "outcome": "ROUTED", "published_at": at("10:00")},
            {"id": 2, "event_type_id": 7, "answers": 1, "outcome": "ROUTED", "published_at": at("11:00")},
            {"id": 3, "event_type_id": 99, "answers": 1, "outcome": "ROUTED", "published_at": at("11:00")},
        ],
        deliveries=[
            {**reply, "id": 1, "status": "DELIVERED", "finished_at": at("11:59")},
            {**reply, "id": 2, "status": "EXPIRED", "finished_at": at("11:59")},
            {**reply, "id": 3, "status": "DELIVERED", "subscription_id": 3, "finished_at": at("11:59")},
        ],
    )
    create = {"event_type_id": 7, "event_type": "Create"}
    wanted = [
        {**create, "hour": at("10:00"), "asked": 3, "answered": 0, "forwarded": 0},
        {**create, "hour": at("11:00"), "asked": 0, "answered": 1, "forwarded": 1},
        {"event_type_id": 99, "event_type": "", "hour": at("11:00"), "asked": 0, "answered": 1, "forwarded": 0},
    ]
    made = HOURLY_SUMMARIES[CALLBACKS_SUMMARY](silver(given, WORDS), WINDOW, WORDS)
    assertDataFrameEqual(made, frame(spark, CALLBACKS_SUMMARY, wanted))


def test_every_summary_has_the_columns_and_types_of_its_table(spark: SparkSession) -> None:
    made = silver(facts(spark), WORDS)
    for table, summary in HOURLY_SUMMARIES.items():
        summed, declared = summary(made, WINDOW, WORDS), frame(spark, table)
        assert summed.dtypes == declared.dtypes


def test_hours_are_those_of_utc(spark: SparkSession) -> None:
    late = DAY + dt.timedelta(hours=23, minutes=59, seconds=59, microseconds=999_999)
    (row,) = rows_of(reliability(frame(spark, SILVER_DELIVERIES, [{**ENDED, "id": 1, "finished_at": late}]), WORDS))
    assert row["hour"] == at("23:00")
