"""Facts prepared for summaries, and how often Spark exchanges rows."""

from dataclasses import replace

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import (
    ENDPOINTS,
    LATENCY,
    RELIABILITY,
    SILVER_ATTEMPTS,
    SILVER_DELIVERIES,
    SILVER_MESSAGES,
    VOLUME,
    Table,
)
from analytics.pipeline.transforms.frames import Frames
from analytics.pipeline.transforms.hourly import HOURLY_SUMMARIES
from analytics.pipeline.transforms.silver import silver
from analytics.vocabulary import vocabulary
from tests.support.spark_frames import DAY, WINDOW, Row, at, facts, frame, rows_of

WORDS = vocabulary()
ABC: dict[str, list[Row]] = {"subscribers": [{"id": 1, "name": "ABC"}]}
CREATE: dict[str, list[Row]] = {"event_types": [{"id": 7, "name": "Project.Create", "kind": "TOPIC"}]}

UNNAMED: Row = {"subscriber": "", "endpoint": "", "event_type": "", "kind": ""}

NOT_ITS_SUBSCRIBERS: Row = {"subscriber_id": None, "subscriber": ""}

SUBSCRIBED: dict[str, list[Row]] = {
    "subscriptions": [
        {"id": number, "subscriber_id": 1, "kind": "TOPIC", "delivery_mode": mode, "endpoint": "https://abc.example"}
        for number, mode in ((3, "PUSH"), (4, "PULL"))
    ],
    "lines": [{"id": 5, "lane": "main", "subscriber_id": 1}],
}
KNOWN: dict[str, list[Row]] = {**ABC, **CREATE, **SUBSCRIBED}
DELIVERY: Row = {
    "id": 1,
    "line_id": 5,
    "subscription_id": 3,
    "event_type_id": 7,
    "status": "DELIVERED",
    "created_at": at("10:00"),
    "finished_at": at("10:00:01.5"),
}
OWNED: Row = {
    "subscriber_id": 1,
    "subscriber": "ABC",
    "subscription_id": 3,
    "endpoint": "https://abc.example",
    "event_type_id": 7,
    "event_type": "Project.Create",
    "kind": "TOPIC",
}
CLEAN: Row = {
    **OWNED,
    "id": 1,
    "status": "DELIVERED",
    "created_at": at("10:00"),
    "finished_at": at("10:00:01.5"),
    "latency_ms": 1500,
}


def deliveries_of(given: Frames, words: Vocabulary = WORDS) -> DataFrame:
    return silver(given, words)[SILVER_DELIVERIES]


def attempts_of(spark: SparkSession, *attempts: Row, **others: list[Row]) -> DataFrame:
    given = facts(spark, **{**KNOWN, "deliveries": [DELIVERY], **others}, attempts=attempts)
    return silver(given, WORDS)[SILVER_ATTEMPTS]


def test_a_delivery_read_twice_counts_once_as_finished(spark: SparkSession) -> None:
    waiting = {**DELIVERY, "status": "IN_FLIGHT", "finished_at": None}
    given = facts(spark, **KNOWN, deliveries=[DELIVERY, DELIVERY], unfinished=[waiting, {**waiting, "id": 2}])
    unfinished = {**CLEAN, "id": 2, "status": "IN_FLIGHT", "finished_at": None, "latency_ms": None}
    assertDataFrameEqual(deliveries_of(given), frame(spark, SILVER_DELIVERIES, [CLEAN, unfinished]))


OWNERS: list[tuple[str, Row, Row]] = [
    ("its subscription's", {}, {}),
    (
        "the line names the subscriber of a deleted subscription",
        {"subscription_id": 99},
        {"subscription_id": 99, "endpoint": ""},
    ),
    (
        "what has been deleted loses its names and keeps its ids",
        {"subscription_id": 99, "line_id": 99, "event_type_id": 99},
        {**UNNAMED, "subscriber_id": None, "subscription_id": 99, "event_type_id": 99},
    ),
    (
        "the reply to a callback has no subscriber, and a kind of its own",
        {"subscription_id": None, "line_id": 6},
        {**NOT_ITS_SUBSCRIBERS, "subscription_id": None, "endpoint": "", "kind": "CALLBACK"},
    ),
    (
        "a delivery that a mailbox has handed out has a kind of its own",
        {"fetches": 1, "attempts": 1},
        {"fetches": 1, "attempts": 1, "kind": "MAILBOX"},
    ),
    (
        "a delivery that waits in a mailbox and was never sent",
        {"subscription_id": 4, "attempts": 0, "fetches": 0},
        {"subscription_id": 4, "attempts": 0, "fetches": 0, "kind": "MAILBOX"},
    ),
    (
        "a delivery that expired unread before its subscription was switched to push",
        {"status": "EXPIRED", "attempts": 0, "fetches": 0, "unread": True},
        {"status": "EXPIRED", "attempts": 0, "fetches": 0, "kind": "MAILBOX"},
    ),
    (
        "a delivery that was sent before its subscription was switched keeps its kind",
        {"subscription_id": 4, "attempts": 1, "fetches": 0},
        {"subscription_id": 4, "attempts": 1, "fetches": 0},
    ),
    (
        "a delivery that ended unsent before its subscription was switched",
        {"attempts": 0, "fetches": 0},
        {"attempts": 0, "fetches": 0},
    ),
    ("of QUEUE its sender is known too", {"line_id": 8}, {"sender": 4}),
    ("a SYNC call has no line", {"line_id": None}, {}),
    (
        "the line of a sender has no subscriber",
        {"line_id": 8, "subscription_id": 99},
        {**NOT_ITS_SUBSCRIBERS, "subscription_id": 99, "sender": 4, "endpoint": ""},
    ),
]


def test_the_owner_of_a_delivery(spark: SparkSession) -> None:
    lines = [*SUBSCRIBED["lines"], {"id": 6, "lane": "callback"}, {"id": 8, "lane": "queue", "sender": 4}]
    deliveries = [{**DELIVERY, **row, "id": n} for n, (_, row, _) in enumerate(OWNERS)]
    wanted = [{**CLEAN, **row, "id": n} for n, (*_, row) in enumerate(OWNERS)]
    twice = {name: rows * 2 for name, rows in {**KNOWN, "lines": lines}.items()}
    assertDataFrameEqual(
        deliveries_of(facts(spark, **twice, deliveries=deliveries)), frame(spark, SILVER_DELIVERIES, wanted)
    )


def test_an_attempt_lasts_until_the_next_one_or_its_deliverys_end(spark: SparkSession) -> None:
    first = {"id": 10, "delivery_id": 1, "number": 1, "started_at": at("10:00"), "duration_ms": 250, "status_code": 503}
    second = {**first, "id": 11, "number": 2, "started_at": at("10:00:01"), "status_code": 200}
    made = attempts_of(spark, second, first, second, first)
    judged = {"error_class": "503", "failed": True, "holds": True}
    passed = {"error_class": "2xx", "failed": False, "holds": False}
    wanted = [
        {**OWNED, **first, **judged, "ended_at": at("10:00:00.25"), "next_at": at("10:00:01")},
        {**OWNED, **second, **passed, "ended_at": at("10:00:01.25"), "next_at": at("10:00:01.5")},
    ]
    assertDataFrameEqual(made, frame(spark, SILVER_ATTEMPTS, wanted))


def test_an_attempt_of_an_unknown_delivery_is_kept_without_owner(spark: SparkSession) -> None:
    stray = {"id": 10, "delivery_id": 9, "started_at": at("10:00"), "duration_ms": 0, "status_code": 503}
    made = {**UNNAMED, **stray, "ended_at": at("10:00"), "error_class": "503", "failed": True, "holds": False}
    assertDataFrameEqual(attempts_of(spark, stray), frame(spark, SILVER_ATTEMPTS, [made]))


CAME_TO = [
    (200, "", "2xx", False),
    (299, "", "2xx", False),
    (301, "", "3xx", True),
    (404, "", "4xx", True),
    (500, "", "5xx", True),
    (503, "", "503", True),
    (600, "", "other", True),
    (100, "", "other", True),
    (None, "", "the connection or the answer broke", True),
    (None, "Could not resolve host: abc.example", "the name of its host was not resolved", True),
    (None, "no answer: Could not resolve host: abc.example", "the name of its host was not resolved", True),
    (None, "Connection timed out after 5001 milliseconds", "timed out", True),
    (None, "Failed to connect to abc.example port 443", "no connection", True),
    (None, "OpenSSL/3: error", "TLS failed", True),
    (None, "OpenSSLike", "the connection or the answer broke", True),
    (None, "it was then that it Failed to connect ", "the connection or the answer broke", True),
]


def test_the_result_of_attempts(spark: SparkSession) -> None:
    attempts = [
        {"id": n, "delivery_id": 1, "started_at": at("10:00"), "duration_ms": 0, "status_code": status, "error": error}
        for n, (status, error, *_) in enumerate(CAME_TO)
    ]
    made = {row["id"]: (row["error_class"], row["failed"]) for row in rows_of(attempts_of(spark, *attempts))}
    assert made == {n: (error_class, failed) for n, (*_, error_class, failed) in enumerate(CAME_TO)}


HOLDS = [
    ("TOPIC", 503, True),
    ("TOPIC", None, True),
    ("TOPIC", 500, False),
    ("TOPIC", 200, False),
    ("QUEUE", 503, False),
    ("QUEUE", None, False),
    ("SYNC", 503, False),
    ("CALLBACK", 500, True),
    ("CALLBACK", 404, False),
    ("MAILBOX", 503, True),
    ("MAILBOX", 500, False),
]


def test_which_answers_hold_the_line_depends_on_the_kind(spark: SparkSession) -> None:
    subscriptions: list[Row] = [{"id": n, "subscriber_id": 1, "kind": kind} for n, (kind, *_) in enumerate(HOLDS)]
    deliveries: list[Row] = [
        {**DELIVERY, "id": n, "subscription_id": None if kind == WORDS.callback_reply_kind else n}
        for n, (kind, *_) in enumerate(HOLDS)
    ]
    attempts = [
        {"id": n, "delivery_id": n, "started_at": at("10:00"), "duration_ms": 0, "status_code": status}
        for n, (_, status, _) in enumerate(HOLDS)
    ]
    made = rows_of(attempts_of(spark, *attempts, subscriptions=subscriptions, deliveries=deliveries))
    assert [row["holds"] for row in sorted(made, key=lambda row: int(row["id"]))] == [holds for *_, holds in HOLDS]


MESSAGES: list[tuple[Row, Row]] = [
    ({"event_type_id": 7, "publisher_id": 2}, {"event_type": "Project.Create", "publisher": "CRM", "kind": "TOPIC"}),
    ({"event_type_id": 7, "answers": 1}, {"event_type": "Project.Create", "publisher": "", "kind": "CALLBACK"}),
    ({"event_type_id": 99, "publisher_id": 99}, {"event_type": "", "publisher": "", "kind": ""}),
    ({}, {"event_type": "", "publisher": "", "kind": ""}),
]


def test_a_message_has_the_names_of_its_publisher_and_event_type(spark: SparkSession) -> None:
    stored = {"outcome": "ROUTED", "published_at": at("10:00")}
    messages = [{**stored, **row, "id": n} for n, (row, _) in enumerate(MESSAGES)]
    given = facts(spark, **CREATE, publishers=[{"id": 2, "name": "CRM"}] * 2, messages=messages * 2)
    wanted = [{**stored, **row, **bears, "id": n} for n, (row, bears) in enumerate(MESSAGES)]
    assertDataFrameEqual(silver(given, WORDS)[SILVER_MESSAGES], frame(spark, SILVER_MESSAGES, wanted))


def test_a_new_kind_follows_its_own_rules(spark: SparkSession) -> None:
    words = replace(WORDS, holding=(*WORDS.holding, ("CARRIER", (404,))))
    given = facts(
        spark,
        subscriptions=[{"id": 3, "kind": "CARRIER"}],
        deliveries=[DELIVERY],
        attempts=[{"id": 1, "delivery_id": 1, "started_at": at("10:00"), "duration_ms": 0, "status_code": 404}],
    )
    (row,) = rows_of(silver(given, words)[SILVER_ATTEMPTS])
    assert (row["kind"], row["holds"]) == ("CARRIER", True)


def exchanges(made: DataFrame, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return by what rows are exchanged on the way to `made`."""
    made.explain()
    lines = capsys.readouterr().out.splitlines()
    return sorted(
        line.partition("Exchange hashpartitioning(")[2].partition("#")[0] for line in lines if "Exchange h" in line
    )


def test_silver_exchanges_facts_once_and_no_names(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    given = facts(
        spark,
        lines=[{"id": 1, "sender": 1}],
        **{name: [{"id": 1}] for name in ("subscriptions", "subscribers", "event_types", "publishers")},
        deliveries=[{"id": 1}],
        unfinished=[{"id": 2}],
        attempts=[{"id": 1, "delivery_id": 1}],
        messages=[{"id": 1}],
    )
    made = silver(given, WORDS)
    assert exchanges(made[SILVER_DELIVERIES], capsys) == ["id"]
    assert exchanges(made[SILVER_ATTEMPTS], capsys) == ["delivery_id", "id"]
    assert exchanges(made[SILVER_MESSAGES], capsys) == ["id"]


@pytest.mark.parametrize("table", [RELIABILITY, LATENCY, ENDPOINTS, VOLUME], ids=lambda table: table.name)
def test_a_summary_exchanges_counts(spark: SparkSession, table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    given = facts(
        spark,
        deliveries=[{"id": 1, "finished_at": DAY, "status": WORDS.delivered}],
        attempts=[{"id": 1, "delivery_id": 1}],
        messages=[{"id": 1}],
    )
    clean = silver(given, WORDS)
    assert exchanges(HOURLY_SUMMARIES[table](clean, WINDOW, WORDS), capsys).count("hour") == 2
