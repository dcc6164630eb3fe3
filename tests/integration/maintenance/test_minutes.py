"""Live numbers: what ended in each closed minute, by subscriber and event type."""

import datetime as dt
from typing import Any

import psycopg
import pytest
from django.utils import timezone

from delivery.believed_clock import BELIEVED_CLOCK
from delivery.maintenance.minutes import KEPT_HOURS, count_minutes
from delivery.maintenance.periodic import run_periodic_jobs
from delivery.models import Delivery, Line, Message, MinuteCount, MinuteTotal
from delivery.pause import pause_one
from subscriptions.models import Subscriber, Subscription
from tests.integration.analytics.test_live_numbers import last_minute, waiting
from tests.support import broker, factories
from tests.support.database import wait_for_time_in_the_minute
from tests.support.stored_summaries import bucket_of

MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)
COUNTS = ("deliveries", "delivered", "eligible", "buckets", "bucket_counts")
NOTHING: tuple[Any, ...] = (0, 0, 0, [], [])


@pytest.fixture
def last(storage: None, monkeypatch: pytest.MonkeyPatch) -> dt.datetime:
    """The last minute that is over, however long the test takes."""
    now = timezone.now()
    let_it_be(now, monkeypatch)
    return now.replace(second=0, microsecond=0) - MINUTE


def let_it_be(now: dt.datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BELIEVED_CLOCK, "now", lambda: now)


def ended(
    subscription: Subscription | None, at: dt.datetime, *, status: str = "DELIVERED", ms: int = 10, **more: Any
) -> Delivery:
    values = {"size": 1, "created_at": at - dt.timedelta(milliseconds=ms), "finished_at": at, "closed_on": at.date()}
    return Delivery.objects.create(subscription=subscription, status=status, **{**values, **more})


def counted(minute: dt.datetime) -> dict[Any, list[Any]]:
    rows: Any = MinuteCount.objects.filter(minute=minute).values_list("subscriber", "event_type", *COUNTS)
    return {(subscriber, event_type): counts for subscriber, event_type, *counts in rows}


def total(minute: dt.datetime) -> Any:
    return MinuteTotal.objects.values_list(*COUNTS).get(minute=minute)


def test_what_ended_in_the_last_minute_is_counted_by_subscriber_and_event_type(last: dt.datetime) -> None:
    shop, store = factories.subscription(), factories.subscription()
    ended(shop, last, ms=10)
    ended(shop, last + MINUTE - dt.timedelta(microseconds=1), ms=10)
    ended(shop, last, ms=0)
    ended(shop, last, status="REJECTED")
    ended(shop, last, status="CANCELLED")
    ended(store, last, ms=3000, not_before=last - dt.timedelta(milliseconds=100))
    ended(store, last, ms=900, fetches=1)
    for outside in (last - dt.timedelta(microseconds=1), last + MINUTE):
        ended(shop, outside)
    assert count_minutes() == 1
    assert counted(last) == {
        (shop.subscriber_id, shop.event_type_id): [5, 3, 4, [-1, bucket_of(10)], [1, 2]],
        (store.subscriber_id, store.event_type_id): [2, 2, 2, [bucket_of(100)], [1]],
    }
    assert total(last) == (7, 5, 6, [-1, bucket_of(10), bucket_of(100)], [1, 2, 1])
    assert count_minutes() == 0, "the next one is not over"


def test_events_of_patterns_replies_and_deleted_subscriptions_have_their_owner(last: dt.datetime) -> None:
    paid = factories.event_type("Shop.Paid")
    message = Message.objects.create(event_type=paid, body=b"", size=0, content_type="text/plain", outcome="ROUTED")
    by_pattern = factories.subscription(event_pattern="Shop.*")
    line = Line.objects.get(subscriber=Subscriber.objects.get(), lane="main")
    ended(by_pattern, last, message=message)
    ended(None, last, message=message, line=line)
    ended(None, last, status="REDUNDANT")
    count_minutes()
    bucket = bucket_of(10)
    assert counted(last) == {
        (by_pattern.subscriber_id, paid.pk): [2, 2, 2, [bucket], [2]],
        (None, None): [1, 0, 0, [], []],
    }


def test_a_minute_is_counted_once_nothing_can_end_in_it(
    last: dt.datetime, elsewhere: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere.execute("SELECT pg_current_xact_id()")
    assert count_minutes() == 1, "that began after the minute"
    let_it_be(timezone.now() + MINUTE, monkeypatch)
    assert count_minutes() == 0
    elsewhere.rollback()
    assert count_minutes() == 1


def test_what_was_missed_is_made_up_for_once(last: dt.datetime) -> None:
    shop = factories.subscription()
    for missed in (last - 2 * MINUTE, last - MINUTE, last):
        ended(shop, missed)
    MinuteTotal.objects.create(minute=last - 3 * MINUTE, **zero())
    assert [count_minutes() for _ in range(4)] == [1, 1, 1, 0]
    assert [total(last - number * MINUTE)[0] for number in range(3)] == [1, 1, 1]
    assert MinuteCount.objects.count() == 3
    dues = MinuteTotal.objects.order_by("minute").values_list("due", flat=True)
    assert [*dues] == [None, None, None, 0], "nobody knows what was due at the end of those before"


@pytest.mark.behaviour("11.8")
def test_what_is_due_after_a_minute_is_what_waits_for_its_turn_only(last: dt.datetime) -> None:
    shop, paused, box, inactive = (factories.subscription() for _ in range(4))
    own = factories.subscription(event_pattern="Broker.*")
    pause_one(paused.pk, reason="")
    Subscription.objects.filter(pk=box.pk).update(delivery_mode="PULL", endpoint="")
    broker.inactivate(inactive.subscriber)
    for one in (shop, shop, paused, box, inactive, own):
        waiting(one, 1)
    waiting(shop, 1, not_before=timezone.now() + HOUR, waits_for="START")
    waiting(shop, 1, status="HELD", waits_for="RELEASE")
    waiting(shop, 1, due_at=timezone.now() + HOUR, waits_for="RETRY")
    count_minutes()
    assert MinuteTotal.objects.get(minute=last).due == 2


def test_minutes_are_kept_for_two_days_but_none_of_a_clock_that_was_ahead(last: dt.datetime) -> None:
    shop = factories.subscription()
    first, before, ahead = last - KEPT_HOURS * HOUR, last - MINUTE, last + HOUR
    for minute in (first - MINUTE, first, before, ahead):
        MinuteTotal.objects.create(minute=minute, **zero())
        MinuteCount.objects.create(minute=minute, subscriber=shop.subscriber, **zero())
    assert count_minutes() == 1
    assert sorted(MinuteTotal.objects.values_list("minute", flat=True)) == [first, before, last]
    assert sorted(MinuteCount.objects.values_list("minute", flat=True)) == [first, before]
    assert total(last) == NOTHING


@pytest.mark.behaviour("11.8")
def test_after_the_clock_was_set_back_the_minutes_that_it_repeats_are_counted_again(storage: None) -> None:
    wait_for_time_in_the_minute()
    last, shop = last_minute(), factories.subscription()
    for ahead in range(-2, 31):
        MinuteTotal.objects.create(minute=last + ahead * MINUTE, **zero())
        MinuteCount.objects.create(minute=last + ahead * MINUTE, subscriber=shop.subscriber, **zero())
    ended(shop, last)
    run_periodic_jobs()
    for model in (MinuteTotal, MinuteCount):
        assert sorted(model.objects.values_list("minute", flat=True)) == [last - 2 * MINUTE, last - MINUTE, last]
    one = [1, 1, 1, [bucket_of(10)], [1]]
    assert ([*total(last)], counted(last)) == (one, {(shop.subscriber_id, shop.event_type_id): one})


def test_after_days_without_a_worker_only_what_is_kept_is_counted(last: dt.datetime) -> None:
    MinuteTotal.objects.create(minute=last - 10 * 24 * HOUR, **zero())
    assert count_minutes() == 1
    assert MinuteTotal.objects.latest("minute").minute == last + MINUTE - KEPT_HOURS * HOUR


def zero() -> dict[str, Any]:
    return dict(zip(COUNTS, NOTHING, strict=True))
