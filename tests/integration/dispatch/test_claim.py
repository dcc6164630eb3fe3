"""How a worker claims a line, and which of a subscriber's two lines."""

import datetime as dt
import time
from math import inf
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now

from broker_project.core.database_clock import DATABASE_CLOCK
from delivery.dispatch.claim import Claim, claim
from delivery.limits import CAPACITY, MAX_LINE_BYTES
from delivery.models import Delivery, Lane, Line, Pace
from delivery.operations import SLICE, cancel_deliveries_of
from delivery.publish.routing import sender_lines
from delivery.statuses import DeliveryStatus
from delivery.worker.round_trip import mark_of
from subscriptions.models import Subscription
from tests.support import broker, factories
from tests.support.broker import lines_with_due_work
from tests.support.database import execute
from tests.support.factories import subscriber, subscription

pytestmark = pytest.mark.django_db

HOUR = dt.timedelta(hours=1)
LONG_AGO, LATER = dt.datetime(2020, 1, 1, tzinfo=dt.UTC), dt.datetime(2120, 1, 1, tzinfo=dt.UTC)
PAUSED: dict[str, Any] = {"paused_since": Now(), "paused_by": "HAND", "paused_reason": "moving house"}
NEITHER: tuple[list[int], list[int]] = ([], [])


def claims_of(**fields: Any) -> dict[str, Claim]:
    """Take both lines of a new subscriber; return what is known of each, by lane."""
    lines = Line.objects.filter(subscriber=subscriber(**fields))
    return {taken.lane: taken for taken in claim([line.pk for line in lines], worker="worker")}


@pytest.mark.behaviour("4.13")
@pytest.mark.parametrize(
    ("fields", "concurrency"),
    [({}, 1), ({"processing": "CONCURRENT", "concurrency": 5}, 5), ({"processing": "CONCURRENT"}, 1)],
)
def test_a_claim_has_the_terms_of_its_subscriber(fields: dict[str, Any], concurrency: int) -> None:
    claims = claims_of(max_queued_to_send=7, max_queued_bytes=65_536, refill_percent=25, **fields)
    main, retry = claims[Lane.MAIN], claims[Lane.RETRY]
    assert (main.sibling_line_id, main.concurrency) == (retry.line_id, concurrency)
    assert (retry.sibling_line_id, retry.concurrency) == (main.line_id, 1)
    assert {(one.capacity, one.max_bytes, one.refill_level) for one in (main, retry)} == {(7, 65_536, 0.25)}


def test_a_senders_line_has_no_sibling() -> None:
    (taken,) = claim([*sender_lines(1)], worker="worker")
    assert (taken.sibling_line_id, taken.concurrency, taken.capacity) == (None, 1, CAPACITY)
    assert (taken.max_bytes, taken.refill_level) == (MAX_LINE_BYTES, 0.0)


@pytest.fixture
def wanted(storage: None) -> Subscription:
    """Return a subscription with one delivery."""
    made = subscription()
    broker.publish_numbered(made.event_type, 1)
    return made


@pytest.fixture
def lines(wanted: Subscription) -> list[Line]:
    return [broker.line_of(wanted.subscriber), broker.retry_line_of(wanted.subscriber)]


def reached(lines: list[Line]) -> tuple[list[int], list[int]]:
    """Return which of the lines the sweep finds, and which read something."""
    found = sorted(lines_with_due_work())
    claims = claim([line.pk for line in lines], worker="w")
    assert len(claims) == len(lines)
    return found, sorted(one.line_id for one in claims if broker.outgoing_of(one))


def only(line: Line) -> tuple[list[int], list[int]]:
    return [line.pk], [line.pk]


@pytest.mark.behaviour("4.1", "5.3")
def test_every_subscriber_has_a_main_line_and_a_retry_line_from_the_start(storage: None) -> None:
    made = subscriber()
    assert [*made.lines.order_by("id").values_list("lane", "queue")] == [(Lane.MAIN, "topic"), (Lane.RETRY, "retry")]


@pytest.mark.behaviour("2.13", "4.1", "4.6", "5.3")
@pytest.mark.parametrize(
    ("lane", "fields", "is_due"),
    [
        (0, {}, True),
        (0, {"waits_for": "RETRY", "due_at": Now()}, True),
        (1, {"waits_for": "RETRY", "due_at": Now()}, True),
        (1, {"waits_for": "RETRY", "due_at": Now() + HOUR}, False),
        (0, {"waits_for": "START", "not_before": Now() - HOUR}, False),
    ],
)
def test_a_due_delivery_is_in_one_line(lines: list[Line], lane: int, fields: dict[str, Any], *, is_due: bool) -> None:
    Delivery.objects.update(line=lines[lane], **fields)
    assert reached(lines) == (only(lines[lane]) if is_due else NEITHER)
    delivery = Delivery.objects.get()
    assert delivery.not_before is None or delivery.next_try_at == delivery.not_before


@pytest.mark.behaviour("1.6")
@pytest.mark.parametrize("lane", [0, 1])
def test_a_paused_subscription_is_not_sent_from_either_line(wanted: Subscription, lines: list[Line], lane: int) -> None:
    Delivery.objects.update(line=lines[lane], waits_for="RETRY", due_at=Now())
    Subscription.objects.filter(pk=wanted.pk).update(**PAUSED)
    broker.publish_numbered(wanted.event_type, 1, first=1)
    assert reached(lines) == NEITHER
    assert Delivery.objects.filter(status="PENDING").count() == 2


@pytest.mark.behaviour("1.6", "4.9", "4.15")
@pytest.mark.parametrize("lane", [0, 1])
def test_a_page_in_hand_is_not_begun_after_a_pause(wanted: Subscription, lines: list[Line], lane: int) -> None:
    broker.publish_numbered(wanted.event_type, 1, first=1)
    Delivery.objects.update(line=lines[lane], waits_for="RETRY", due_at=Now())
    driven, first, _ = broker.crash_while_sending(lines[lane])
    second = broker.outgoing_of(driven.claim)[0]
    Subscription.objects.filter(pk=wanted.pk).update(**PAUSED)
    ended = [broker.settlement(driven, first)]
    settled = broker.settle(driven, settlements=ended, marks=[mark_of(driven, second)])
    assert ([*settled.ended], [*settled.started]) == ([first.id], [])


@pytest.mark.behaviour("4.16")
def test_a_jump_of_the_databases_clock_ends_no_lease(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    assert claim([lines[0].pk], worker="one")
    Line.objects.filter(pk=lines[0].pk).update(lease_until=F("lease_until") - HOUR)
    monkeypatch.setattr(DATABASE_CLOCK, "without_jumps", lambda _: time.time() - HOUR.total_seconds())
    assert (lines_with_due_work(), claim([lines[0].pk], worker="another")) == ([], [])
    monkeypatch.setattr(DATABASE_CLOCK, "without_jumps", lambda _: time.time())
    assert (lines_with_due_work(), len(claim([lines[0].pk], worker="another"))) == ([lines[0].pk], 1)


@pytest.mark.behaviour("1.4")
def test_a_subscription_has_a_pace_as_soon_as_it_has_a_rate_limit_and_while_it_is_there(storage: None) -> None:
    first, second, _ = subscription(rate_limit=5.0), subscription(), subscription()
    assert [*Pace.objects.values_list("pk", flat=True)] == [first.pk]
    for rate in (2.0, None, 3.0):
        Subscription.objects.filter(pk=second.pk).update(rate_limit=rate)
    assert [*Pace.objects.order_by("pk").values_list("pk", flat=True)] == [first.pk, second.pk]
    first.delete()
    assert [*Pace.objects.values_list("pk", flat=True)] == [second.pk]


@pytest.mark.parametrize("end", ["answered", "cancelled", "cancelled after an unclean end"])
def test_a_final_delivery_keeps_its_fields(wanted: Subscription, lines: list[Line], end: str) -> None:
    fields = {"expires_at": LATER, "not_before": LONG_AGO, "resubmit_of": 7, "replay_id": 8, "unreceived": True}
    Delivery.objects.update(**fields)
    if end == "cancelled":
        cancel_deliveries_of(wanted.pk, reason="unwanted")
    else:
        driven, delivery, _ = broker.crash_while_sending(lines[0])
        Delivery.objects.update(cancel_requested=end != "answered")
        if end == "answered":
            broker.settle(driven, settlements=[broker.settlement(driven, delivery)])
        broker.expire_lease(lines[0])
        claim([lines[0].pk], worker="next")
    assert Delivery.objects.final().values(*fields).get() == fields | {"unreceived": end != "answered"}


@pytest.mark.behaviour("1.8")
@pytest.mark.django_db(transaction=True)
def test_a_backlog_larger_than_one_slice_is_cancelled_whole(storage: None) -> None:
    subscription = factories.subscription()
    line = broker.line_of(subscription.subscriber)
    execute(
        "INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, due_at)"
        " SELECT n, %s, %s, 'PENDING', 1, CASE WHEN n %% 2 = 0 THEN 'RETRY' ELSE 'TURN' END,"
        " CASE WHEN n %% 2 = 0 THEN now() END FROM generate_series(1, %s) n",
        [line.pk, subscription.pk, 2 * SLICE + 1],
    )

    assert cancel_deliveries_of(subscription.pk, reason="too many", seconds=inf) == (2 * SLICE + 1, 0, True)
    assert Delivery.objects.open().count() == 0
    assert Delivery.objects.final().filter(status=DeliveryStatus.CANCELLED, reason="too many").count() == 2 * SLICE + 1
