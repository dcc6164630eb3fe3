"""How QUEUE senders share the work, and the endpoints of a group."""

from typing import Any, Final

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from analytics.pipeline.tables import SENDERS, SHARES, SILVER_DELIVERIES
from analytics.pipeline.transforms.hourly import senders, shares
from analytics.vocabulary import vocabulary
from tests.frames import Row, at, frame

WORDS: Final = vocabulary()


def ended(number: int, group: int, status: str, finished: str | None, **more: Any) -> Row:
    """Return a delivery of a group; its subscription has the number 3 or 4 and is ABC's."""
    owner = {"subscriber_id": 1, "subscriber": "ABC", "event_type": "Build", "endpoint": "https://abc.example"}
    row = {"id": number, "group_id": group, "sender": 2, "status": status, "subscription_id": 3, **owner}
    return {**row, "finished_at": at(finished) if finished else None, **more}


ROWS: Final = [
    ended(10, 10, "REDUNDANT", "10:01"),
    ended(11, 10, "DELIVERED", "10:01", subscription_id=4),
    ended(12, 12, "DELIVERED", "10:02"),
    ended(13, 12, "REDUNDANT", "10:02", subscription_id=4),
    ended(14, 14, "REJECTED", "11:00", subscription_id=4),
    ended(15, 14, "PENDING", None),
    ended(16, 16, "DELIVERED", "10:03", sender=0, subscription_id=4),
    ended(17, 17, "DELIVERED", "10:03", sender=None, group_id=None),
]


@pytest.mark.behaviour("6.2")
def test_senders_are_told_by_the_hour_what_they_ended(spark: SparkSession) -> None:
    made = senders(frame(spark, SILVER_DELIVERIES, ROWS), WORDS)
    rows = [
        {
            "hour": at("10:00"),
            "sender": 2,
            "messages": 2,
            "deliveries": 4,
            "by_status": {"DELIVERED": 2, "REDUNDANT": 2},
        },
        {"hour": at("10:00"), "sender": 0, "messages": 1, "deliveries": 1, "by_status": {"DELIVERED": 1}},
        {"hour": at("11:00"), "sender": 2, "messages": 0, "deliveries": 1, "by_status": {"REJECTED": 1}},
    ]
    assertDataFrameEqual(made, frame(spark, SENDERS, rows))


@pytest.mark.behaviour("6.3")
def test_a_group_goes_by_its_first_subscription_also_where_that_has_not_ended(spark: SparkSession) -> None:
    owner = {"subscriber_id": 1, "subscriber": "ABC", "event_type": "Build", "endpoint": "https://abc.example"}
    both = {"hour": at("10:00"), "group_of": 3, "deliveries": 2, "delivered": 1, "redundant": 1, **owner}
    one = {**both, "deliveries": 1, "delivered": 0, "redundant": 0}
    rows = [
        {**both, "subscription_id": 3},
        {**both, "subscription_id": 4},
        {**one, "hour": at("11:00"), "subscription_id": 4},
        {**one, "group_of": 4, "subscription_id": 4, "delivered": 1},
    ]
    made = shares(frame(spark, SILVER_DELIVERIES, ROWS), WORDS)
    assertDataFrameEqual(made, frame(spark, SHARES, rows))
