"""Days are opened ahead, and dropped once they are old and summarized (contract 11.4)."""

import datetime as dt
import os
import threading
from importlib import import_module
from typing import Any

import psycopg
import pytest
import structlog
from django.apps import apps
from django.db import OperationalError, connection
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone

from broker_project.core.db import rows
from broker_project.environment import MAX_DAYS
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.dispatch.claim import claim
from delivery.maintenance import expiry, partitions, retention
from delivery.maintenance.partitions import (
    DAYS_AHEAD,
    first_id,
    leaf_of,
    open_days,
    say_where_to_file,
    seconds_left,
    today,
)
from delivery.maintenance.periodic import Maintainer, MaintenanceFailed, maintain, maintenance_pause
from delivery.maintenance.retention import days_kept, drop_past_days
from delivery.models import Attempt, Delivery, Line, LineEvent, Message, StorageDay
from delivery.operations import cancel_deliveries_of
from delivery.status.timeline import timeline_of
from delivery.statuses import DeliveryStatus
from subscriptions import edit
from subscriptions.models import FormerDestination, Publisher, StatusChange, Subscription
from tests.support import broker
from tests.support.api import publish
from tests.support.database import do_and_disconnect, execute, lock_waiters
from tests.support.factories import subscriber, subscription

pytestmark = pytest.mark.behaviour("11.4")

KEEP_DAYS = 14
NOW = "SELECT clock_timestamp()"
IS_APART = """
SELECT m.xmin <> made.xmin FROM delivery_message m, pg_attribute made
 WHERE made.attrelid = m.tableoid AND made.attname = 'ctid'
"""
"""Whether a message was stored by another transaction than its table was made by."""
CANCELLED, DELIVERED, PENDING = DeliveryStatus.CANCELLED, DeliveryStatus.DELIVERED, DeliveryStatus.PENDING

DAY = dt.timedelta(days=1)


def live_through(first: dt.date, last: dt.date) -> None:
    """Let the broker have run from `first` to `last`; nothing was stored, so that there are no partitions."""
    days = [StorageDay(day=first + number * DAY, lived=True) for number in range((last - first).days + 1)]
    StorageDay.objects.bulk_create(days, update_conflicts=True, unique_fields=["day"], update_fields=["lived"])


@pytest.fixture
def lived(storage: None) -> None:
    """Let the broker have run as many days as data is kept."""
    live_through(today() - dt.timedelta(days=KEEP_DAYS), today())


@pytest.fixture
def past(lived: None) -> dt.date:
    """A day past its time that has partitions."""
    day = today() - dt.timedelta(days=KEEP_DAYS + 6)
    open_days(day, ahead=0)
    return day


@pytest.fixture
def wanted(receiver: Receiver, past: dt.date) -> Subscription:
    return subscription(endpoint=receiver.url("/a"))


def published_on(day: dt.date, wanted: Subscription, *bodies: bytes) -> list[int]:
    """Publish messages and let them have been published on `day`; return their ids."""
    accepted = broker.publish_bodies(wanted.event_type, *bodies)
    before = Message.objects.filter(pk__lt=first_id(day) + 10**10).count()
    ids = [first_id(day) + number for number, _ in enumerate(accepted, before)]
    for one, new in zip(accepted, ids, strict=True):
        Delivery.objects.filter(message_id=one.id).update(message_id=new)
        Message.objects.filter(pk=one.id).update(id=new)
    return ids


def finish_one(wanted: Subscription) -> tuple[int, int]:
    """Deliver the oldest; return its id and number."""
    line = broker.line_of(wanted.subscriber)
    driven, delivery, number = broker.crash_while_sending(line)
    driven.numbers.last = number
    broker.settle(
        {line.pk: driven.claim.epoch},
        settlements=[broker.settlement(driven, delivery)],
        states=[driven.update()],
    )
    return delivery.id, number


def midnight(day: dt.date) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), dt.UTC)


def file_under(day: dt.date, delivery_id: int) -> None:
    """Let a finished delivery have ended on `day`, and its attempts have been made then."""
    Delivery.objects.filter(pk=delivery_id).update(closed_on=day, finished_at=midnight(day))
    for number, attempt in enumerate(Attempt.objects.filter(delivery_id=delivery_id)):
        Attempt.objects.filter(pk=attempt.pk).update(id=first_id(day) + number)


def drop() -> list[dt.date]:
    return drop_past_days(today(), keep_days=KEEP_DAYS)


def leaves(day: dt.date) -> list[str]:
    found = execute("SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE %s", [f"%{day:%Y%m%d}%"])
    return sorted(name for (name,) in found)


def test_the_first_day_is_the_databases_and_not_that_of_the_machine_that_migrates(
    storage: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    day = today() - dt.timedelta(days=100)
    monkeypatch.setattr(partitions, "today", lambda: day)
    import_module("delivery.migrations.0002_partitions").open_today(apps, connection)
    assert StorageDay.objects.filter(day=day).exists()


def test_a_day_past_its_time_goes_with_all_that_ended_in_it(past: dt.date, wanted: Subscription) -> None:
    published_on(past, wanted, b"old")
    delivery_id, _ = finish_one(wanted)
    file_under(past, delivery_id)
    assert (Message.objects.count(), Delivery.objects.count(), Attempt.objects.count()) == (1, 1, 1)
    assert drop() == [past]
    assert (Message.objects.count(), Delivery.objects.count(), Attempt.objects.count()) == (0, 0, 0)
    assert (leaves(past), StorageDay.objects.filter(day=past).exists()) == ([], False)


@pytest.mark.django_db
def test_histories_are_kept_as_long_as_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    line = Line.objects.get(subscriber=subscriber(), lane="main")
    now = timezone.now()
    for days in (KEEP_DAYS + 2, KEEP_DAYS + 2, KEEP_DAYS + 1, KEEP_DAYS - 1, 0):
        LineEvent.objects.create(line=line, kind="RELEASED", at=now - dt.timedelta(days=days))
        StatusChange.objects.create(subscriber_id=1, status="ACTIVE", at=now - dt.timedelta(days=days))
    retention.delete_old_records(keep_days=KEEP_DAYS)
    for history in (LineEvent, StatusChange):
        kept = history.objects.order_by("id").values_list("at", flat=True)
        assert [now - at for at in kept] == [dt.timedelta(KEEP_DAYS - 1), dt.timedelta(0)]


@pytest.mark.django_db
def test_what_was_noted_while_the_clock_was_ahead_keeps_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SLICE", 2)
    line = Line.objects.get(subscriber=subscriber(), lane="main")
    now = timezone.now()
    for days in (KEEP_DAYS + 2, -20, -20, -20, KEEP_DAYS + 2, KEEP_DAYS + 1, 0):
        LineEvent.objects.create(line=line, kind="RELEASED", at=now - dt.timedelta(days=days))
    retention.delete_old_records(keep_days=KEEP_DAYS)
    kept = LineEvent.objects.order_by("id").values_list("at", flat=True)
    assert [(now - at).days for at in kept] == [-20, -20, -20, 0]


@pytest.mark.behaviour("10.4")
def test_what_was_sent_on_a_day_is_shown_as_it_was_as_long_as_the_day_is_kept(
    past: dt.date, wanted: Subscription, receiver: Receiver
) -> None:
    broker.publish_numbered(wanted.event_type, 1)
    delivery_id, _ = finish_one(wanted)
    edit.change(Subscription.objects.filter(pk=wanted.pk), changes={"endpoint": "https://elsewhere.example/"})
    Attempt.objects.update(started_at=midnight(past))
    FormerDestination.objects.update(at=midnight(past) + dt.timedelta(hours=1))
    retention.delete_old_records(keep_days=KEEP_DAYS)
    (exchange,) = timeline_of(Delivery.objects.get(pk=delivery_id), timezone.now()).exchanges
    assert exchange.request
    assert exchange.request.url == receiver.url("/a")
    drop()
    retention.delete_old_records(keep_days=KEEP_DAYS)
    assert not FormerDestination.objects.exists()


def test_workers_with_another_retention_are_refused(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    first, second = broker.lone_worker("first"), broker.lone_worker("second", keep_days=KEEP_DAYS + 1)
    try:
        first.start()
        assert first.wait_until_started()
        with structlog.testing.capture_logs() as logged:
            second.start()
            wait_until(lambda: statuses)
    finally:
        second.stop()
        first.stop()
    assert statuses[0] == os.EX_CONFIG
    (said, *_) = [one["reason"] for one in logged if one["event"] == "worker.refused"]
    assert str(said).startswith("BROKER_RETENTION_DAYS is 15 here, and 14 in a worker that uses the same database:")


def test_days_are_kept_as_long_as_anybody_may_ask_for(past: dt.date) -> None:
    maintain(keep_days=MAX_DAYS, callback_days=14)
    assert StorageDay.objects.filter(day=past).exists()
    maintain(keep_days=KEEP_DAYS, callback_days=14)
    assert not StorageDay.objects.filter(day=past).exists()
    assert drop() == []


def test_a_day_that_ended_less_long_ago_stays(lived: None) -> None:
    last_kept = today() - dt.timedelta(days=KEEP_DAYS)
    open_days(last_kept, ahead=0)
    assert drop() == []
    assert drop_past_days(today() + DAY, keep_days=KEEP_DAYS) == [last_kept]


@pytest.mark.parametrize("ahead", [9, 42])
def test_a_clock_that_jumps_far_ahead_drops_no_more_than_tomorrow_would(lived: None, ahead: int) -> None:
    oldest, *others = StorageDay.objects.order_by("day").values_list("day", flat=True)
    later = today() + dt.timedelta(days=ahead)
    open_days(later)
    assert drop_past_days(later, keep_days=KEEP_DAYS) == [oldest]
    after = later + dt.timedelta(days=KEEP_DAYS)
    live_through(later, after)
    assert drop_past_days(after, keep_days=KEEP_DAYS) == others[:2], "two days a run"


def test_messages_needed_still_are_delivered(past: dt.date, wanted: Subscription, receiver: Receiver) -> None:
    gone, needed = published_on(past, wanted, b"gone", b"needed \xff\x00")
    finish_one(wanted)
    assert drop() == [past]
    assert [*Message.objects.values_list("id", flat=True)] == [needed]
    assert leaves(past) == [leaf_of("delivery_message", past)]
    assert StorageDay.objects.get(day=past).dropped_at is not None
    assert execute(IS_APART) == [(True,)], "else the copy may bypass the write-ahead log, and its commit is long"
    assert drop() == []
    broker.run_worker_until_done()
    assert receiver.bodies("/a") == [b"needed \xff\x00"]
    assert drop() == [past]
    assert (leaves(past), Message.objects.count(), gone) == ([], 0, first_id(past))


@pytest.mark.behaviour("1.7")
def test_most_kept_messages_go_once_most_are_not_needed(past: dt.date, wanted: Subscription) -> None:
    beside = subscription(subscriber=wanted.subscriber)
    published_on(past, wanted, *[b"%d" % number for number in range(5)])
    (last,) = published_on(past, beside, b"last")
    assert drop() == [past]
    assert Message.objects.count() == 6
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    assert drop() == []
    StorageDay.objects.filter(day=past).update(dropped_at=midnight(past))
    assert drop() == [past]
    assert [*Message.objects.values_list("id", flat=True)] == [last]
    StorageDay.objects.filter(day=past).update(dropped_at=midnight(past))
    assert drop() == []


def test_a_day_opened_again_takes_what_ends_on_it(past: dt.date, wanted: Subscription) -> None:
    published_on(past, wanted, b"needed")
    drop()
    open_days(past, ahead=0)
    assert len(leaves(past)) == 3
    assert StorageDay.objects.get(day=past).dropped_at is None


def test_a_finished_delivery_may_outlive_its_message(
    past: dt.date, wanted: Subscription, client: Client, publisher: Publisher, admin_client: Client
) -> None:
    (message_id,) = published_on(past, wanted, b"old")
    delivery_id, _ = finish_one(wanted)
    drop()
    assert Message.objects.count() == 0
    assert Delivery.objects.select_related("message").get().message_id == message_id
    assert client.get(f"/api/v1/messages/{message_id}").status_code == 404
    assert admin_client.get(f"/admin/delivery/delivery/{delivery_id}/change/").status_code == 200
    assert admin_client.get("/admin/delivery/delivery/").status_code == 200
    gone = admin_client.get(f"/admin/delivery/message/{message_id}/change/", follow=True)
    assert (gone.status_code, b"Perhaps it was deleted?" in gone.content) == (200, True)


@pytest.mark.behaviour("5.2")
def test_open_deliveries_keep_their_counts_without_attempts(past: dt.date, wanted: Subscription) -> None:
    published_on(past, wanted, b"stuck")
    line = broker.line_of(wanted.subscriber)
    driven, delivery, _ = broker.crash_while_sending(line)
    aside = broker.settlement(driven, delivery, PENDING, status_code=500, pause=0.0)
    broker.settle({line.pk: driven.claim.epoch}, settlements=[aside], states=[driven.update()])
    Attempt.objects.update(id=first_id(past))
    drop()
    assert (Attempt.objects.count(), Delivery.objects.get().attempts) == (0, 1)
    finish_one(wanted)
    assert (Attempt.objects.get().number, Delivery.objects.get().attempts) == (2, 2)


@pytest.mark.behaviour("2.6")
def test_a_key_is_answered_as_before_though_its_message_is_gone(
    past: dt.date, wanted: Subscription, publisher: Publisher, client: Client
) -> None:
    first = publish(client, Idempotency_Key="once")
    Message.objects.update(id=first_id(past))
    drop()
    again = publish(client, Idempotency_Key="once")
    assert (again.status_code, again.json()) == (202, {**first.json(), "replayed": True})
    assert Message.objects.count() == 0


@pytest.mark.behaviour("4.10")
def test_the_history_of_lines_is_kept(past: dt.date, wanted: Subscription) -> None:
    line = broker.line_of(wanted.subscriber)
    LineEvent.objects.create(line=line, at=midnight(past), kind="NUMBER_UNCERTAIN")
    drop()
    assert LineEvent.objects.count() == 1


@pytest.mark.behaviour("4.10")
def test_the_last_number_of_an_abandoned_line_is_kept(past: dt.date, wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    line = broker.line_of(wanted.subscriber)
    driven, delivery, number = broker.crash_while_sending(line)
    broker.settle({line.pk: driven.claim.epoch}, settlements=[broker.settlement(driven, delivery)])
    file_under(past, delivery.id)
    Line.objects.filter(pk=line.pk).update(lease_until=midnight(past) + dt.timedelta(hours=23))
    assert drop() == []
    (taken,) = claim([line.pk], worker="next")
    assert (taken.last_sequence, drop()) == (number, [past])


def test_numbers_go_on_after_a_crash_though_older_days_were_dropped(past: dt.date, wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 3)
    first, _ = finish_one(wanted)
    file_under(past, first)
    drop()
    line = broker.line_of(wanted.subscriber)
    driven, delivery, number = broker.crash_while_sending(line)
    broker.settle({line.pk: driven.claim.epoch}, settlements=[broker.settlement(driven, delivery)])
    broker.expire_lease(line)
    (taken,) = claim([line.pk], worker="next")
    assert (number, taken.last_sequence) == (2, 2)


@pytest.mark.parametrize("table", ["delivery_message", "delivery_delivery", "delivery_attempt"])
def test_a_day_that_somebody_uses_is_dropped_later_and_whole(
    past: dt.date, wanted: Subscription, elsewhere: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    monkeypatch.setattr(retention, "TRIES", 2)
    monkeypatch.setattr(retention, "SLICE", 1)
    published_on(past, wanted, b"needed", b"needed too")
    before = leaves(past)
    with elsewhere.transaction(), structlog.testing.capture_logs() as told:
        elsewhere.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE".encode())
        assert drop() == []
        assert {*before} <= {*leaves(past)}
    assert [one["event"] for one in told if one["event"].startswith("storage_day")] == ["storage_day.in_use"]
    ((now,),) = execute("SELECT pg_current_xact_id()::text::bigint")
    assert drop() == [past]
    assert leaves(past) == [leaf_of("delivery_message", past)]
    copied = execute("SELECT xmin::text::bigint < %s FROM delivery_message", [now])
    assert copied == [(True,)] * 2, "they were copied the first time"


def test_stopping_does_not_wait_for_a_day_that_is_in_use(past: dt.date, elsewhere: psycopg.Connection[Any]) -> None:
    stopping = threading.Event()
    maintainer = Maintainer(stopping, keep_days=KEEP_DAYS, callback_days=14)
    maintainer.wait_until_stopped()
    with elsewhere.transaction():
        elsewhere.execute("LOCK TABLE delivery_attempt IN ACCESS SHARE MODE")
        maintainer.start()
        wait_until(lock_waiters)
        stopping.set()
        maintainer.wait_until_stopped()
        assert maintainer.is_alive(), "it was not waited for"
    maintainer.join(PATIENCE_SECONDS)
    assert not maintainer.is_alive()


def test_a_job_of_maintenance_that_fails_stops_no_other(past: dt.date, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "remove_ended_lines", lambda: int("a defect"))
    monkeypatch.setattr(expiry, "forget_callbacks", lambda **_: rows("SELECT 1 / 0"))
    with pytest.raises(MaintenanceFailed, match="remove_ended_lines, forget_callbacks"):
        maintain(keep_days=KEEP_DAYS, callback_days=14)
    assert not StorageDay.objects.filter(day=past).exists()


def test_no_other_day_is_dropped_while_stopping(past: dt.date) -> None:
    second = past + DAY
    open_days(second, ahead=0)
    first = StorageDay.objects.filter(day=past)
    assert drop_past_days(today(), keep_days=KEEP_DAYS, is_stopping=lambda: not first.exists()) == [past]
    assert drop() == [second]


def test_two_simultaneous_drops_drop_a_day_once(past: dt.date, elsewhere: psycopg.Connection[Any]) -> None:
    with elsewhere.transaction():
        elsewhere.execute("SELECT pg_advisory_xact_lock(hashtext('delivery.storage_days'))")
        assert drop() == []
    assert drop() == [past]


def test_days_are_dropped_while_deliveries_run(past: dt.date, wanted: Subscription, receiver: Receiver) -> None:
    published_on(past, wanted, b"needed")
    days = [past - dt.timedelta(days=number) for number in range(1, 6)]
    for day in days:
        open_days(day, ahead=0)
    done = threading.Event()

    def publish_until_done() -> None:
        number = 0
        while not done.is_set() or number < 100:
            broker.publish_numbered(wanted.event_type, 1, number)
            number += 1

    publisher = threading.Thread(target=do_and_disconnect, args=[publish_until_done])
    with broker.running_worker(), structlog.testing.capture_logs() as told:
        publisher.start()
        wait_until(lambda: len(receiver.log) > 10)
        broker.inactivate(wanted)
        for _ in range(3):  # two days each
            maintain(keep_days=KEEP_DAYS, callback_days=14)
        type(wanted).objects.filter(pk=wanted.pk).update(status="ACTIVE")
        done.set()
        publisher.join(PATIENCE_SECONDS)
        broker.wait_until_done()
    dropped = [one for one in told if one["event"] == "storage_day.dropped"]
    assert {*days} <= {dt.date.fromisoformat(one["day"]) for one in dropped}
    assert all(one["locked_seconds"] > 0 for one in dropped)
    assert [request.sequence for request in receiver.log] == [*range(1, len(receiver.log) + 1)]
    assert set(broker.statuses(wanted)) <= {DELIVERED}


@pytest.mark.behaviour("11.3")
def test_publishing_settling_and_cancelling_go_on_where_days_are_missing(wanted: Subscription, past: dt.date) -> None:
    for day in StorageDay.objects.exclude(day=past):
        _lose(day.day)
    broker.publish_numbered(wanted.event_type, 3)
    finish_one(wanted)
    cancel_deliveries_of(wanted.pk, reason="unwanted")
    assert {*Delivery.objects.values_list("status", "closed_on")} == {(DELIVERED, past), (CANCELLED, past)}
    assert Attempt.objects.count() == 1


def _lose(day: dt.date) -> None:
    """Let the delivery leaf of `day` never have been made."""
    execute(f"DROP TABLE IF EXISTS {leaf_of('delivery_delivery', day)}")
    StorageDay.objects.filter(day=day).delete()
    with connection.cursor() as cursor:
        say_where_to_file(cursor)


@pytest.mark.behaviour("11.3")
def test_deliveries_that_end_before_every_day_are_filed_under_the_first(wanted: Subscription, past: dt.date) -> None:
    open_days(today(), ahead=2)
    for day in StorageDay.objects.filter(day__lte=today()):
        _lose(day.day)
    broker.publish_numbered(wanted.event_type, 1)
    finish_one(wanted)
    assert Delivery.objects.get().closed_on == today() + DAY


def test_ids_never_go_back_when_the_clock_does(wanted: Subscription) -> None:
    open_days(today(), ahead=1)
    (before,) = broker.publish_bodies(wanted.event_type, b"before")
    open_days(today() - dt.timedelta(days=3), ahead=0)
    (after,) = broker.publish_bodies(wanted.event_type, b"after")
    assert before.id < after.id
    open_days(today(), ahead=1)


@pytest.mark.parametrize(("left", "seconds"), [(80_000.0, 3600.0), (3595.0, 3600.0), (3000.0, 3005.0), (0.001, 5.001)])
def test_tables_are_maintained_every_hour_and_as_soon_as_a_day_has_begun(left: float, seconds: float) -> None:
    assert maintenance_pause(left) == seconds


def test_how_long_the_day_still_takes_is_asked_of_the_database(db: None) -> None:
    ((before,),), left, ((after,),) = execute(NOW), seconds_left(), execute(NOW)
    ends = [midnight(at.date() + DAY) for at in (before, after)]
    assert (ends[0] - after).total_seconds() <= left <= (ends[1] - before).total_seconds()


@pytest.mark.behaviour("11.3")
def test_days_that_cannot_be_opened_stop_nothing(wanted: Subscription, elsewhere: psycopg.Connection[Any]) -> None:
    later = today() + dt.timedelta(days=30)
    with elsewhere.transaction():
        elsewhere.execute("LOCK TABLE delivery_attempt IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(OperationalError, match="lock timeout"):
            open_days(later, ahead=0)
        assert leaves(later) == []
        broker.publish_numbered(wanted.event_type, 1)
        finish_one(wanted)
    assert broker.statuses(wanted) == [DELIVERED]


@pytest.fixture
def unsummarized_day(storage: None) -> dt.date:
    """A day past its time, of a broker that has run ever since; it has partitions."""
    day = today() - dt.timedelta(days=KEEP_DAYS + 1)
    live_through(day, today())
    open_days(day, ahead=0)
    return day


def summarize(*days: dt.date) -> None:
    StorageDay.objects.filter(day__in=days).update(summarized_at=Now())


def is_kept(day: dt.date) -> bool:
    return StorageDay.objects.filter(day=day, dropped_at=None).exists()


def maintained() -> list[list[str]]:
    """Maintain the tables, where days wait for their summaries; return which days the log says are kept."""
    with structlog.testing.capture_logs() as logged:
        maintain(keep_days=KEEP_DAYS, callback_days=14, until_summarized=True)
    return [event["days"] for event in logged if event["event"] == "storage_day.waits_for_summary"]


def test_a_day_past_its_time_waits_for_its_summary_and_that_of_the_next_day(unsummarized_day: dt.date) -> None:
    maintained()
    assert (is_kept(unsummarized_day), days_kept()) == (True, [unsummarized_day])
    summarize(unsummarized_day)
    assert (maintained(), is_kept(unsummarized_day)) == ([], True), "the next day has no summary"
    summarize(unsummarized_day + DAY)
    maintained()
    assert (is_kept(unsummarized_day), days_kept()) == (False, [])


def test_a_day_waits_for_the_summary_of_the_day_before_whose_last_rows_may_stand_in_it(
    unsummarized_day: dt.date,
) -> None:
    before = unsummarized_day - DAY
    StorageDay.objects.create(day=before)
    open_days(before, ahead=0)
    summarize(unsummarized_day, unsummarized_day + DAY)
    maintained()
    assert (is_kept(unsummarized_day), days_kept()) == (True, [before])
    summarize(before)
    maintained()
    assert (is_kept(before), is_kept(unsummarized_day)) == (False, False)


def test_after_an_outage_the_next_day_is_the_one_on_which_the_broker_ran_again(unsummarized_day: dt.date) -> None:
    long_ago = unsummarized_day - 30 * DAY
    opened_then = [long_ago + number * DAY for number in range(1 + DAYS_AHEAD)]
    StorageDay.objects.bulk_create([StorageDay(day=day, lived=day == long_ago) for day in opened_then])
    summarize(*opened_then)
    maintained()
    assert is_kept(long_ago)
    summarize(unsummarized_day, unsummarized_day + DAY)
    maintained()
    assert not is_kept(long_ago)


def test_a_kept_day_is_logged_once_a_day(unsummarized_day: dt.date) -> None:
    said = [[str(unsummarized_day)]]
    assert [maintained(), maintained()] == [said, []]
    StorageDay.objects.update(kept_on=today() - DAY)
    assert maintained() == said


def test_the_list_of_runs_names_what_is_kept(unsummarized_day: dt.date, admin: Client) -> None:
    def page() -> str:
        return admin.get("/admin/analytics/run/").content.decode()

    said = f"Kept beyond their retention until they are summarized: {unsummarized_day}."
    assert said not in page()
    maintained()
    assert said in page()


def test_a_day_dropped_before_summaries_were_enabled_waits_for_none(unsummarized_day: dt.date) -> None:
    StorageDay.objects.filter(day=unsummarized_day).update(dropped_at=Now())
    maintained()
    assert (StorageDay.objects.filter(day=unsummarized_day).exists(), days_kept()) == (False, [])
