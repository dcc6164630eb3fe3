"""A database clock that is hours or weeks ahead for a moment holds no work until then (5.9) and ends nothing (11.7)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db.models.functions import Now
from django.test import Client
from structlog.testing import capture_logs

from broker_project.accounts.tasks import forget
from broker_project.core.api.history import API_USER, KEPT
from delivery.announcements import HELD_SECONDS, announce_held_lines
from delivery.believed_clock import BELIEVED_CLOCK, BelievedClock
from delivery.dispatch.claim import claim
from delivery.limits import LEASE_SECONDS
from delivery.mailbox.acknowledge import acknowledge, extend
from delivery.maintenance.clock import set_back_times
from delivery.maintenance.periodic import maintain, run_periodic_jobs
from delivery.models import Announcement, Delivery, Hold, IdempotencyKey, Line, LineEvent, MinuteTotal, Replay
from delivery.replay import replay_job
from delivery.worker.queue_settle import put_back
from subscriptions.models import EventKind, FormerSecret, PausedBy, Subscription
from tests.support import broker, factories, replays
from tests.support.broker import lines_with_due_work
from tests.support.database import execute
from tests.support.mailboxes import fetch_all, mailbox_of, pulled_subscription, time_out_hand_outs

pytestmark = pytest.mark.usefixtures("storage")

HOURS = timedelta(hours=2)
WEEKS = timedelta(weeks=3)
DELAY = 24 * 3600.0
"""Given by a publisher: it stays."""


def publish_and_claim(**fields: Any) -> Line:
    wanted = factories.subscription(**fields)
    broker.publish_numbered(wanted.event_type, 2)
    return Line.objects.get(pk=claim(lines_with_due_work(), worker="one")[0].line_id)


def deferred() -> None:
    """Leave two deliveries that wait for the longest pause of their policies, and a longer one."""
    for policy, seconds in ((None, 299), (factories.retry_policy(max_delay_seconds=600.0), 599)):
        made = factories.subscription(retry_policy=policy)
        broker.publish_numbered(made.event_type, 1)
        due_at = Now() + timedelta(seconds=seconds)
        Delivery.objects.filter(subscription=made).update(waits_for="RETRY", due_at=due_at)


def grouped() -> None:
    """Leave a QUEUE group that waits for its next cycle, and one that is delayed for longer."""
    kind = factories.event_type(kind=EventKind.QUEUE)
    factories.subscription(event_type=kind)
    broker.publish_bodies(kind, b"1")
    (line,) = Line.objects.filter(pk__in=lines_with_due_work())
    (taken,) = claim([line.pk], worker="one")
    Delivery.objects.update(status="IN_FLIGHT")
    put_back(line.pk, taken.epoch, Delivery.objects.get().pk, pause=59.0)
    broker.publish_bodies(kind, b"later", not_before=datetime.now(UTC) + timedelta(seconds=DELAY))


def fetched() -> None:
    """Leave a message that a client has fetched for half a minute, and one that was extended to three hours."""
    for seconds in (0, 3 * 3600):
        mailbox = pulled_subscription()
        broker.publish_numbered(mailbox.event_type, 1)
        (message,) = fetch_all(mailbox)
        if seconds:
            extend(mailbox.subscriber_id, [message.receipt], seconds=seconds)


def suspended() -> None:
    """Leave a subscription that is probed hourly."""
    factories.subscription(retry_policy=factories.retry_policy(probe_seconds=3600.0))
    at = Now() + timedelta(seconds=3599)
    Subscription.objects.update(paused_since=Now(), paused_by=PausedBy.POLICY, paused_reason="503", probe_due_at=at)


@pytest.mark.behaviour("5.9")
@pytest.mark.parametrize("ahead", [HOURS, timedelta(days=20)])
@pytest.mark.parametrize(
    ("wait", "table", "column", "left"),
    [
        (deferred, "delivery_open", "due_at", [0, 0]),
        (grouped, "delivery_queuegroup", "due_at", [0, DELAY]),
        (publish_and_claim, "delivery_line", "lease_until", [LEASE_SECONDS]),
        (fetched, "delivery_open", "fetched_until", [30, 3 * 3600]),
        (suspended, "subscriptions_subscription", "probe_due_at", [0]),
    ],
)
def test_nothing_waits_for_too_long(
    wait: Callable[[], object], table: str, column: str, left: list[float], ahead: timedelta
) -> None:
    wait()
    times = f"SELECT array_agg({column} ORDER BY {column}) FROM {table} WHERE {column} IS NOT NULL"
    ((before,),) = execute(times)
    assert (len(before), set_back_times(), execute(times)) == (len(left), 0, [(before,)])

    execute(f"UPDATE {table} SET {column} = {column} + %s", [ahead])
    given = [one for one in left if one == DELAY]
    assert (set_back_times(), set_back_times()) == (len(left) - len(given), 0)
    expected = [one + ahead.total_seconds() if one in given else one for one in left]
    ((now, after),) = execute(f"SELECT clock_timestamp(), ({times})")
    seconds = [(one - now).total_seconds() for one in after]
    assert [most - 10 < one <= most for one, most in zip(seconds, expected, strict=True)] == [True] * len(left)


@pytest.mark.behaviour("5.9")
def test_what_was_set_back_is_still_its_clients() -> None:
    mailbox = pulled_subscription()
    broker.publish_numbered(mailbox.event_type, 1)
    (message,) = fetch_all(mailbox)
    execute("UPDATE delivery_open SET fetched_until = fetched_until + interval '2 h'")
    set_back_times()
    assert fetch_all(mailbox) == []
    (result,) = acknowledge(mailbox_of(mailbox.subscriber).subscriber_id, [message.receipt]).values()
    assert result.status == 200


@pytest.mark.behaviour("5.9")
def test_a_replay_goes_on() -> None:
    made = factories.subscription()
    replays.ended(made, 5)
    replays.start_replay(replays.of(made), pace=1000)
    Replay.objects.update(sliced_at=Now() + HOURS, updated_at=Now() + HOURS, failures=1)
    assert (replay_job.go_on(), set_back_times(), set_back_times()) == (0, 1, 0)
    Replay.objects.update(failures=0, sliced_at=Now() - timedelta(seconds=1))
    replays.run_replays()
    assert len(replays.repeated()) == 5


@pytest.mark.behaviour("5.7", "5.9")
def test_a_line_that_was_held_while_the_clock_was_ahead_is_held_from_now_on() -> None:
    line = publish_and_claim()
    held = {"delivery_id": Delivery.objects.oldest_first()[0].pk, "line": line, "reason": "503"}
    hold = Hold.objects.create(**held, since=Now() + HOURS)
    assert (set_back_times(), set_back_times()) == (1, 0)
    execute("UPDATE delivery_hold SET since = since - make_interval(secs => %s)", [HELD_SECONDS])
    assert announce_held_lines() == 1
    assert [one.details["reason"] for one in Announcement.objects.all()] == [hold.reason]


def all_that_ends() -> None:
    """Leave one of each kind whose time is over."""
    kept, mailbox = factories.subscription(), pulled_subscription()
    tried = pulled_subscription(factories.subscriber(max_redeliveries=0))
    for one in (kept, mailbox, tried):
        broker.publish_numbered(one.event_type, 1)
    assert len(fetch_all(tried)) == 1
    time_out_hand_outs()
    Delivery.objects.filter(subscription=kept).update(expires_at=Now() - HOURS)
    Delivery.objects.filter(subscription=mailbox).update(created_at=Now() - WEEKS)
    IdempotencyKey.objects.create(key="k", fingerprint=b"", message_id=1, deliveries_count=1, expires_at=Now() - HOURS)
    FormerSecret.objects.create(subscription=kept, secret="s", signs_until=Now() - HOURS)
    LineEvent.objects.create(line=Line.objects.earliest("id"), kind="RESUMED", at=Now() - WEEKS)
    counts = {"deliveries": 1, "delivered": 1, "eligible": 1, "buckets": [], "bucket_counts": []}
    MinuteTotal.objects.create(minute=datetime.now(UTC) - WEEKS, **counts)
    LogEntry.objects.create(user=User.objects.create(username=API_USER), action_flag=CHANGE)
    LogEntry.objects.update(action_time=Now() - KEPT - HOURS)


def end_what_is_over() -> list[int]:
    """Do what goes by time alone; return how many of each kind are left."""
    run_periodic_jobs()
    maintain(keep_days=14, callback_days=14)
    forget()
    records = (IdempotencyKey.objects, FormerSecret.objects, LineEvent.objects, LogEntry.objects)
    others = (*records, MinuteTotal.objects.filter(deliveries=1))
    return [Delivery.objects.open().count(), *(one.count() for one in others)]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let it seem to a process as if the database's clock has jumped since the process read it."""

    def let_it_jump(by: timedelta, clock: BelievedClock = BELIEVED_CLOCK) -> None:
        monkeypatch.setattr(clock, "_offset", None)
        clock.now()
        offset: Any = clock._offset
        monkeypatch.setattr(clock, "_offset", offset - by.total_seconds())

    return let_it_jump


@pytest.mark.behaviour("11.7")
@pytest.mark.parametrize(
    "go_on",
    [
        pytest.param(lambda: execute("UPDATE delivery_clockjump SET believed_at = now()"), id="ten minutes"),
        pytest.param(
            lambda: execute("UPDATE delivery_clockjump SET believed_at = believed_at + interval '1 min'"), id="set back"
        ),
        pytest.param(lambda: call_command("believe_clock"), id="confirmed"),
    ],
)
def test_nothing_ends_after_a_jump_before_it_is_believed(
    jump: Callable[..., None], go_on: Callable[[], object]
) -> None:
    all_that_ends()
    jump(timedelta(minutes=61))
    with capture_logs() as logged:
        assert end_what_is_over() == [3, 1, 1, 1, 1, 1]
    assert [one["seconds"] // 60 for one in logged if one["event"] == "clock.jumped"] == [61]
    assert BelievedClock().now() is None, "in a process that has started since"
    assert (
        Client().get("/readyz").json()["clock"]
        == "the database's may have jumped ahead: nothing expires for ten minutes"
    )

    go_on()
    assert end_what_is_over() == [0, 0, 0, 0, 0, 0]


@pytest.mark.behaviour("11.7")
@pytest.mark.parametrize("moved", [timedelta(minutes=59), -HOURS, timedelta()])
def test_what_is_no_jump_ahead_ends_as_ever(jump: Callable[..., None], moved: timedelta) -> None:
    all_that_ends()
    jump(moved)
    assert end_what_is_over() == [0, 0, 0, 0, 0, 0]


@pytest.mark.behaviour("11.7")
def test_a_jump_that_was_undone_is_not_doubted_once_its_time_comes(jump: Callable[..., None]) -> None:
    jump(HOURS)
    assert BELIEVED_CLOCK.now() is None
    execute("UPDATE delivery_clockjump SET believed_at = believed_at + %s", [HOURS])  # as seen after it is set back
    set_back_times()
    execute("UPDATE delivery_clockjump SET believed_at = believed_at - %s", [HOURS])  # two hours later
    assert BELIEVED_CLOCK.now() is not None


@pytest.mark.behaviour("11.7")
def test_a_jump_that_was_confirmed_is_not_doubted_by_a_process_that_looks_late(jump: Callable[..., None]) -> None:
    late = BelievedClock()
    for process in (BELIEVED_CLOCK, late):
        jump(HOURS, process)
    assert Client().get("/readyz").json()["clock"] == "ok", "a health check only reads"
    assert BELIEVED_CLOCK.now() is None
    call_command("believe_clock")
    assert None not in {late.now(), BELIEVED_CLOCK.now()}
    jump(HOURS, late)
    assert late.now() is None, "another one"
