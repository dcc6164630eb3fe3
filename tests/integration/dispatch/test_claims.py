"""What a worker knows of a line that it takes."""

from typing import Any

import pytest

from delivery.dispatch.claim import CAPACITY, Claim, claim
from delivery.models import Lane, Line
from delivery.publish.routing import sender_lines
from tests.support.factories import subscriber

pytestmark = pytest.mark.django_db


def claims_of(**fields: Any) -> dict[str, Claim]:
    """Take both lines of a new subscriber; return what is known of each, by lane."""
    lines = Line.objects.filter(subscriber=subscriber(**fields))
    return {taken.lane: taken for taken in claim([line.pk for line in lines], worker="worker")}


def test_each_of_a_subscribers_two_lines_knows_the_other() -> None:
    claims = claims_of()
    main, retry = claims[Lane.MAIN], claims[Lane.RETRY]
    assert (main.sister_id, retry.sister_id) == (retry.line_id, main.line_id)


def test_both_have_as_much_in_hand_as_the_subscriber_allows() -> None:
    assert {taken.capacity for taken in claims_of(max_queued_to_send=7).values()} == {7}


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize(
    ("fields", "strands"),
    [({}, 1), ({"processing": "CONCURRENT", "concurrency": 5}, 5), ({"processing": "CONCURRENT"}, 1)],
)
def test_only_a_main_line_whose_order_does_not_count_has_several_strands(fields: dict[str, Any], strands: int) -> None:
    claims = claims_of(**fields)
    assert (claims[Lane.MAIN].strands, claims[Lane.RETRY].strands) == (strands, 1)


def test_a_line_that_is_no_subscribers_has_no_sister() -> None:
    (taken,) = claim([*sender_lines(1)], worker="worker")
    assert (taken.sister_id, taken.strands, taken.capacity) == (None, 1, CAPACITY)
