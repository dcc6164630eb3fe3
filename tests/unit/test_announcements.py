"""What an event of the broker's own says."""

from datetime import UTC, datetime

import orjson
import pytest

from delivery.announcements import Occasion

AT = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.mark.behaviour("5.7")
def test_it_says_whose_what_why_and_when_and_leaves_out_the_rest() -> None:
    details = {"status": "REJECTED", "reason": "answered 404", "attempts": 3, "body": "secret", "headers": {"A": "b"}}
    occasion = Occasion(7, "Broker.Delivery.Rejected", AT, details, "shop", 5, "Order.*", 9, None)
    assert orjson.loads(occasion.document) == {
        "announcement": 7,
        "at": "2026-03-01T12:00:00+00:00",
        "subscriber": "shop",
        "subscription": 5,
        "events": "Order.*",
        "delivery": 9,
        "status": "REJECTED",
        "reason": "answered 404",
        "attempts": 3,
    }


def test_what_does_not_apply_is_left_out() -> None:
    occasion = Occasion(7, "Broker.Line.Resumed", AT, {"reason": "", "attempts": 0}, None, None, None, None, 4)
    said = {"announcement": 7, "at": "2026-03-01T12:00:00+00:00", "callback": 4, "attempts": 0}
    assert orjson.loads(occasion.document) == said
