"""A machine whose clock is ten minutes off signs by the database's, and reports the difference (contract 4.11)."""

import math
import time
from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from standardwebhooks import Webhook
from structlog.testing import capture_logs

from broker_project.core import boot_clock, database_clock
from broker_project.core.database_clock import DATABASE_CLOCK, DatabaseClock
from broker_project.stack.load.receiver import Receiver
from subscriptions.models import EventKind, EventType, Subscription
from tests.support import broker, factories
from tests.support.api import SYNC_PATH, client_of, publish
from tests.support.database import execute
from tests.support.volatile import VOLATILE_HEADERS, run_tasks, wait_until_answered

pytestmark = pytest.mark.behaviour("4.11")

MINUTES = 10 * 60


@pytest.fixture(params=[MINUTES, -MINUTES])
def ahead(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Set the clock of this process ahead, and return by how many seconds."""
    seconds: int = request.param
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    for name, value in vars(DatabaseClock()).items():
        monkeypatch.setattr(DATABASE_CLOCK, name, value)
    return seconds


def verify(receiver: Receiver, wanted: Subscription, requests: int) -> None:
    """Check what came as a receiver does, which refuses times that are five minutes off."""
    assert len(receiver.log) == requests
    for sent in receiver.log:
        Webhook(wanted.signing_secret).verify(sent.body, dict(sent.headers))


def test_deliveries_are_signed_by_it(ahead: int, wanted: Subscription, receiver: Receiver) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    worker = broker.lone_worker("elsewhere")
    worker.start()
    try:
        broker.wait_until_done()
    finally:
        worker.stop()
    verify(receiver, wanted, 2)
    assert (
        execute("SELECT clock_timestamp() - started_at BETWEEN '0 s' AND '1 min' FROM delivery_attempt")
        == [(True,)] * 2
    )


@pytest.mark.usefixtures("calls")
def test_calls_and_test_events_are_signed_by_it(ahead: int, receiver: Receiver, client: Client) -> None:
    called = factories.event_type(kind=EventKind.SYNC, name="Shop.Price.Asked")
    asked = factories.subscription(event_type=called, endpoint=receiver.url(SYNC_PATH))
    assert publish(client, event=called.name).status_code == 200
    assert client_of().post(f"/api/v1/subscriptions/{asked.pk}/send-test-event").status_code == 200
    verify(receiver, asked, 2)


@pytest.mark.usefixtures("volatile")
def test_volatile_messages_are_signed_by_it(
    ahead: int, event_type: EventType, client: Client, receiver: Receiver
) -> None:
    wanted = factories.subscription(event_type=event_type, endpoint=receiver.url("/shop"))
    assert publish(client, **VOLATILE_HEADERS).status_code == 202
    run_tasks()
    wait_until_answered(receiver, "/shop")
    verify(receiver, wanted, 1)


@pytest.mark.django_db
def test_a_difference_is_logged_once_and_shown_while_it_lasts(ahead: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_project.core.database_clock.REFRESH_SECONDS", 0.0)
    with capture_logs() as logged:
        shown = [Client().get("/readyz").json()["clock"] for _ in range(2)]
        wrong = time.time
        monkeypatch.setattr(time, "time", lambda: wrong() - ahead + 29)
        shown += [Client().get("/readyz").json()["clock"] for _ in range(2)]
    differs = f"600 s {'ahead of' if ahead > 0 else 'behind'} the database's"
    assert shown == [differs, differs, "ok", "ok"]
    of_clocks = [(one["event"], one.get("ahead_seconds")) for one in logged if one["event"].startswith("clock.")]
    assert of_clocks == [("clock.differs", ahead), ("clock.agrees", None)]


@pytest.mark.django_db
def test_what_is_late_is_judged_by_it(
    ahead: int, admin: Client, job: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: own() + timedelta(seconds=ahead))
    every = IntervalSchedule.objects.create(every=30, period="seconds")
    PeriodicTask.objects.create(name="sweep", task="sweep", interval=every)
    PeriodicTask.objects.update(last_run_at=Now())
    publish(client_of(), event=job.name)
    shown = Client().get("/readyz").json()
    assert (shown["beat"], shown["senders"]) == ("ok", "ok")
    assert "Celery beat" not in admin.get("/admin/").context["items"]


@pytest.mark.behaviour("4.16")
def test_a_jump_ahead_is_left_out_for_as_long_as_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now = DatabaseClock(), {"boot": 100.0, "database": 5000.0}
    monkeypatch.setattr(boot_clock, "since_boot", lambda: now["boot"])
    monkeypatch.setattr(database_clock, "rows", lambda _: [(now["database"],)])
    assert clock.without_jumps(20) == math.inf
    ahead = []
    for jump in (0, 0, 3600, 0, 0, 0, 0, 0, -7200, 0):
        now["database"] += jump
        clock.refresh()
        ahead.append(now["database"] - clock.without_jumps(20))
        now = {name: seconds + 5 for name, seconds in now.items()}
    assert ahead == [0, 0, 3600, 3600, 3600, 3600, 3600, 0, 0, 0]
