"""What was written while the database's clock was hours or weeks ahead holds no work until then (contract 5.9)."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from delivery.dispatch.claim import claim
from delivery.limits import LEASE_SECONDS
from delivery.mailbox.acknowledge import acknowledge, extend
from delivery.maintenance.clock import set_back_times
from delivery.models import Delivery, Line, Replay
from delivery.replay import replay_job
from delivery.worker.queue_settle import put_back
from subscriptions.models import EventKind, PausedBy, Subscription
from tests.support import broker, factories, replays
from tests.support.broker import lines_with_due_work
from tests.support.database import execute
from tests.support.mailboxes import fetch_all, mailbox_of, pulled_subscription

pytestmark = [pytest.mark.behaviour("5.9"), pytest.mark.usefixtures("storage")]

HOURS = timedelta(hours=2)
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


@pytest.mark.parametrize("ahead", [HOURS, timedelta(days=20)])
@pytest.mark.parametrize(
    ("wait", "table", "column", "allowed"),
    [
        (deferred, "delivery_open", "due_at", [300, 600]),
        (grouped, "delivery_queuegroup", "due_at", [60, DELAY]),
        (publish_and_claim, "delivery_line", "lease_until", [LEASE_SECONDS]),
        (fetched, "delivery_open", "fetched_until", [30, 3 * 3600]),
        (suspended, "subscriptions_subscription", "probe_due_at", [3600]),
    ],
)
def test_nothing_waits_for_too_long(
    wait: Callable[[], object], table: str, column: str, allowed: list[float], ahead: timedelta
) -> None:
    wait()
    times = f"SELECT array_agg({column} ORDER BY {column}) FROM {table} WHERE {column} IS NOT NULL"
    ((before,),) = execute(times)
    assert (len(before), set_back_times(), execute(times)) == (len(allowed), 0, [(before,)])

    execute(f"UPDATE {table} SET {column} = {column} + %s", [ahead])
    given = [one for one in allowed if one == DELAY]
    assert (set_back_times(), set_back_times()) == (len(allowed) - len(given), 0)
    allowed = [one + ahead.total_seconds() if one in given else one for one in allowed]
    ((now, after),) = execute(f"SELECT clock_timestamp(), ({times})")
    left = [(one - now).total_seconds() for one in after]
    assert [most - 10 < seconds <= most for seconds, most in zip(left, allowed, strict=True)] == [True] * len(allowed)


def test_what_was_set_back_is_still_its_clients() -> None:
    mailbox = pulled_subscription()
    broker.publish_numbered(mailbox.event_type, 1)
    (message,) = fetch_all(mailbox)
    execute("UPDATE delivery_open SET fetched_until = fetched_until + interval '2 h'")
    set_back_times()
    assert fetch_all(mailbox) == []
    (result,) = acknowledge(mailbox_of(mailbox.subscriber).subscriber_id, [message.receipt]).values()
    assert result.status == 200


def test_a_replay_goes_on() -> None:
    made = factories.subscription()
    replays.ended(made, 5)
    replays.start_replay(replays.of(made), pace=1000)
    Replay.objects.update(sliced_at=Now() + HOURS, updated_at=Now() + HOURS, failures=1)
    assert (replay_job.go_on(), set_back_times(), set_back_times()) == (0, 1, 0)
    Replay.objects.update(failures=0, sliced_at=Now() - timedelta(seconds=1))
    replays.run_replays()
    assert len(replays.repeated()) == 5
