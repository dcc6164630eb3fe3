"""What waited at every fifth minute."""

import datetime as dt
from collections import Counter
from typing import Final

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from analytics.pipeline.job import Window
from analytics.pipeline.tables import BACKLOG
from analytics.pipeline.transforms.hourly import SECONDS, backlog
from tests.frames import DAY, Row, at, frame, rows_of, silver_of

HOUR: Final = Window(at("10:00"), at("11:00"))
KNOWN: Final[dict[str, list[Row]]] = {
    "subscribers": [{"id": 1, "name": "ABC"}],
    "subscriptions": [{"id": 3, "subscriber_id": 1}],
    "lines": [{"id": 5, "lane": "main", "subscriber_id": 1}, {"id": 6, "lane": "callback"}],
}
ABC: Final = {"subscriber_id": 1, "subscriber": "ABC"}
NOBODY: Final = {"subscriber_id": None, "subscriber": ""}


def counted(at_minute: int, deliveries: int, owner: Row) -> Row:
    return {"at": HOUR.start + dt.timedelta(minutes=at_minute), "deliveries": deliveries, **owner}


def test_what_ended_counts_from_its_publish_to_its_end_and_the_rest_to_the_windows(spark: SparkSession) -> None:
    ended = [
        {**ABC, "created_at": at("09:50"), "finished_at": at("10:07")},
        {**ABC, "created_at": at("10:05"), "finished_at": at("10:10")},
        {**ABC, "created_at": at("10:11"), "finished_at": at("10:14:59")},
        {**ABC, "created_at": at("10:00"), "finished_at": None},
    ]
    waiting: list[Row] = [
        {"subscription_id": 3, "line_id": 5, "since": at("10:50"), "deliveries": 4},
        {"subscription_id": 4, "line_id": 5, "since": at("10:55"), "deliveries": 2},
        {"subscription_id": 3, "line_id": 5, "since": at("11:00"), "deliveries": 9},
        {"subscription_id": None, "line_id": 6, "since": at("10:55"), "deliveries": 1},
    ]
    rows = [counted(0, 1, ABC), counted(5, 2, ABC), counted(50, 4, ABC), counted(55, 6, ABC), counted(55, 1, NOBODY)]
    made = backlog(silver_of(spark, **KNOWN, deliveries=ended, waiting=waiting), HOUR)
    assertDataFrameEqual(made, frame(spark, BACKLOG, rows))


SECOND: Final = st.integers(-4000, 2 * 3600)
STAYS: Final = st.lists(st.tuples(st.integers(1, 20), SECOND, st.integers(0, 5000)), min_size=200, max_size=200)
"""Whose, when it was made, and how long it took, in seconds after the hour began."""


def moment(second: int) -> dt.datetime:
    return HOUR.start + dt.timedelta(seconds=second)


@settings(max_examples=2, deadline=None, derandomize=True, phases=[Phase.generate])
@given(STAYS)
def test_at_each_moment_those_are_counted_that_were_made_and_have_not_ended(
    spark: SparkSession, stays: list[tuple[int, int, int]]
) -> None:
    made = [(whose, second, second + took) for whose, second, took in stays if second < 3600]
    ended = [
        {"subscriber_id": whose, "subscriber": "", "created_at": moment(start), "finished_at": moment(end)}
        for whose, start, end in made
        if 0 <= end < 3600
    ]
    still = Counter((whose, max(0, -(-start // SECONDS) * SECONDS)) for whose, start, end in made if end >= 3600)
    waiting = [
        {"subscription_id": whose, "since": moment(since), "deliveries": count}
        for (whose, since), count in still.items()
    ]
    subscriptions = [{"id": whose, "subscriber_id": whose} for whose in range(1, 21)]
    expected = Counter(
        (whose, second) for second in range(0, 3600, SECONDS) for whose, start, end in made if start <= second < end
    )
    rows = rows_of(backlog(silver_of(spark, deliveries=ended, waiting=waiting, subscriptions=subscriptions), HOUR))
    assert {(row["subscriber_id"], row["at"]): row["deliveries"] for row in rows} == {
        (whose, moment(second)): count for (whose, second), count in expected.items()
    }


def test_a_part_of_an_hour_has_the_moments_in_it(spark: SparkSession) -> None:
    part = Window(HOUR.start, HOUR.start + dt.timedelta(minutes=37, seconds=12))
    waiting: list[Row] = [{"subscription_id": 3, "line_id": 5, "since": at("10:25"), "deliveries": 4}]
    rows = [counted(25, 4, ABC), counted(30, 4, ABC), counted(35, 4, ABC)]
    assertDataFrameEqual(backlog(silver_of(spark, **KNOWN, waiting=waiting), part), frame(spark, BACKLOG, rows))


def test_a_day_has_288_moments(spark: SparkSession) -> None:
    waiting = [{"subscription_id": 3, "since": DAY, "deliveries": 1}]
    day = Window(DAY, DAY + dt.timedelta(days=1))
    rows = rows_of(backlog(silver_of(spark, **KNOWN, waiting=waiting), day))
    assert len({row["at"] for row in rows}) == len(rows) == 288
