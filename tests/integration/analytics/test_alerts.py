"""Alerts fire once and say when they are over, whatever restarts and however many look, and never about themselves."""

import datetime as dt
import json
import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection
from django.db.models import F
from django.test import Client
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from structlog.testing import capture_logs

from analytics import alerts
from analytics.admin import dashboard
from analytics.alert_rules import AlertName, AlertThresholds
from analytics.api import metrics
from analytics.models import Alert, ClockDifference, Run, RunState
from broker_project.core import database_clock
from broker_project.core.database_clock import DATABASE_CLOCK, DatabaseClock
from broker_project.stack.folders import ROOT
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from delivery import announcements
from delivery.models import Announcement, ClockJump, Delivery, Hold, MinuteTotal
from subscriptions.models import EventType, Subscription
from tests.integration.analytics.test_live_numbers import last_minute, minute, waiting
from tests.integration.analytics.test_metrics import scraped
from tests.support import broker, factories

THRESHOLDS = AlertThresholds()
JUDGED = {"broker_oldest_waiting_seconds", "broker_longest_hold_seconds", "broker_last_hour_failed_ratio"}
LONG_AGO = timezone.now() - dt.timedelta(hours=2)
TLS = "no answer: SSL certificate problem: certificate has expired"


@pytest.fixture(autouse=True)
def everything_runs(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, ["worker-1"])
    every = IntervalSchedule.objects.create(every=30, period="seconds")
    PeriodicTask.objects.create(name="do chores", interval=every, last_run_at=timezone.now())


def seen(monkeypatch: pytest.MonkeyPatch, names: list[str] | None) -> None:
    monkeypatch.setattr(alerts, "listening_workers", lambda: names)


def look(*, after: int = alerts.LOOK_SECONDS + 1) -> list[tuple[str, str]]:
    """Look as if so many seconds had passed; return what is announced of which alert."""
    moved = dt.timedelta(seconds=after)
    for alert in Alert.objects.all():
        Alert.objects.filter(pk=alert.pk).update(
            looked_at=alert.looked_at - moved, met_since=alert.met_since and alert.met_since - moved
        )
    alerts.look(THRESHOLDS)
    told = [(one.kind, one.details["alert"]) for one in Announcement.objects.order_by("id")]
    Announcement.objects.all().delete()
    return told


def held(subscription: Subscription, reason: str = "answered 503") -> None:
    (delivery,) = waiting(subscription, 1)
    Hold.objects.create(delivery=delivery, line_id=delivery.line_id or 0, reason=reason, failures=1, since=LONG_AGO)


def grows(_: Subscription, minutes_ago: Sequence[int] = range(THRESHOLDS.growing_minutes + 1)) -> None:
    newest = last_minute()
    for ago in minutes_ago:
        minute(ago, newest=newest)
    for ago, one in enumerate(MinuteTotal.objects.order_by("-minute")):
        MinuteTotal.objects.filter(pk=one.pk).update(due=5000 - ago)


def fails_to_summarize(_: Subscription) -> None:
    Run.objects.create(state=RunState.FAILED, error="no memory", started_at=LONG_AGO, ended_at=LONG_AGO)


CONDITIONS: dict[AlertName, Callable[[Subscription], object]] = {
    AlertName.DELIVERY_WAITS: lambda shop: waiting(shop, 1, created_at=LONG_AGO),
    AlertName.LINE_BLOCKED: held,
    AlertName.DELIVERIES_FAIL: lambda shop: minute(0, of=shop, took={10: 90}, failed=10, newest=last_minute()),
    AlertName.BACKLOG_GROWS: grows,
    AlertName.WITHOUT_BEAT: lambda _: PeriodicTask.objects.update(last_run_at=LONG_AGO),
    AlertName.NUMBERS_LATE: lambda _: minute(120),
    AlertName.SUMMARY_FAILED: fails_to_summarize,
    AlertName.CLOCK_JUMPED: lambda _: ClockJump.objects.create(
        id=1, seconds=7200, believed_at=timezone.now() + dt.timedelta(minutes=5)
    ),
}


def mend() -> None:
    for model in (Hold, Delivery, Run, MinuteTotal, ClockJump):
        model.objects.all().delete()
    PeriodicTask.objects.update(last_run_at=timezone.now())


@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize("name", CONDITIONS)
def test_an_alert_fires_once_and_says_when_it_is_over(name: AlertName) -> None:
    shop = factories.subscription(factories.subscriber("shop"))
    assert look() == []
    CONDITIONS[name](shop)
    assert [told for _ in range(5) for told in look()] == [(alerts.FIRING, name)]
    mend()
    assert (look(), look()) == ([(alerts.RESOLVED, name)], [])


@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize(("names", "alert"), [([], AlertName.WITHOUT_WORKERS), (None, AlertName.WITHOUT_REDIS)])
def test_a_part_that_is_away_for_less_than_a_minute_raises_none(
    monkeypatch: pytest.MonkeyPatch, names: list[str] | None, alert: AlertName
) -> None:
    seen(monkeypatch, names)
    assert (look(), look(after=31)) == ([], [])
    seen(monkeypatch, ["worker-1"])
    assert look() == []
    seen(monkeypatch, names)
    assert (look(), look(after=61)) == ([], [(alerts.FIRING, alert)])
    seen(monkeypatch, ["worker-1"])
    assert look() == [(alerts.RESOLVED, alert)]


@pytest.mark.behaviour("11.8")
def test_that_no_worker_runs_is_not_over_because_redis_cannot_say(
    admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dashboard, metrics):
        monkeypatch.setattr(module, "listening_workers", lambda: None)
    without, redis = AlertName.WITHOUT_WORKERS, AlertName.WITHOUT_REDIS
    seen(monkeypatch, [])
    assert (look(), look(after=61)) == ([], [(alerts.FIRING, without)])
    seen(monkeypatch, None)
    assert (look(), look(after=61)) == ([], [(alerts.FIRING, redis)])
    assert (scraped()["broker_workers", ""], "none runs" in admin.get("/admin/").text) == (0, True)
    seen(monkeypatch, [])
    assert (look(), look(after=61)) == ([(alerts.RESOLVED, redis)], [])
    seen(monkeypatch, ["worker-1"])
    assert look() == [(alerts.RESOLVED, without)]


@pytest.mark.behaviour("11.8")
def test_a_part_is_missed_in_time_after_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen(monkeypatch, [])
    look()
    Alert.objects.update(met_since=timezone.now() + dt.timedelta(hours=2))
    assert (look(), look(after=61)) == ([], [(alerts.FIRING, AlertName.WITHOUT_WORKERS)])


@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize("has_failed", [True, False])
def test_the_last_run_is_the_one_that_ended_last(has_failed: bool) -> None:
    """Runs that people ask for overtake those that wait."""
    last, before = (RunState.FAILED, RunState.PASSED) if has_failed else (RunState.PASSED, RunState.FAILED)
    for state, ended_at in ((last, timezone.now()), (before, LONG_AGO)):
        Run.objects.create(state=state, started_at=LONG_AGO, ended_at=ended_at)
    assert look() == [(alerts.FIRING, AlertName.SUMMARY_FAILED)] * has_failed


@pytest.mark.behaviour("11.8")
def test_a_refused_certificate_is_seen_behind_what_failed_longer_ago() -> None:
    """Of a subscriber that has several endpoints, and is sent several deliveries at a time."""
    shop = factories.subscriber("shop")
    held(factories.subscription(shop))
    held(factories.subscription(shop), TLS)
    Hold.objects.filter(reason=TLS).update(since=LONG_AGO + dt.timedelta(hours=1))
    assert look() == [(alerts.FIRING, AlertName.LINE_BLOCKED), (alerts.FIRING, AlertName.TLS_FAILS)]
    assert Alert.objects.get(name=AlertName.TLS_FAILS).reason == "TLS fails with the endpoint of shop."
    found = scraped()
    assert [found["broker_longest_hold_seconds", cause] // 3600 for cause in ("other", "tls")] == [2, 1]


@pytest.mark.behaviour("4.11", "11.8")
def test_a_process_names_itself_while_its_clock_differs(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**vars(DatabaseClock()), "_refresh_at": 0.0}.items():
        monkeypatch.setattr(DATABASE_CLOCK, name, value)
    monkeypatch.setattr(database_clock, "REFRESH_SECONDS", 0.0)
    right, ahead = time.time, {"seconds": 29}
    monkeypatch.setattr(time, "time", lambda: right() + ahead["seconds"])
    alerts.look_and_publish(THRESHOLDS)
    assert (look(), ClockDifference.objects.count()) == ([], 0)
    ahead["seconds"] = 31
    for told in ([(alerts.FIRING, AlertName.CLOCK_DIFFERS)], []):
        for _ in range(2):
            alerts.look_and_publish(THRESHOLDS)  # too early to look
        assert (look(), look(after=3600)) == (told, []), "also the first look after an outage of the database"
    own = f"{socket.gethostname()}-{os.getpid()}"
    reason = f"Clocks differ: that of {own} is 31 s ahead of the database's."
    assert Alert.objects.get(name=AlertName.CLOCK_DIFFERS).reason == reason
    assert f"Clock of {own}" in admin.get("/admin/").text
    assert scraped()["broker_clock_ahead_seconds", own] == 31
    ahead["seconds"] = 0
    alerts.look_and_publish(THRESHOLDS)
    assert (look(), look()) == ([(alerts.RESOLVED, AlertName.CLOCK_DIFFERS)], [])
    assert not ClockDifference.objects.exists()


@pytest.mark.behaviour("11.8")
def test_however_many_look_one_finds_out_and_an_alert_fires_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held(factories.subscription())

    def look_in_a_thread(_: int) -> int:
        try:
            return alerts.look(THRESHOLDS)
        finally:
            connection.close()

    computed: list[str] = []

    def workers() -> list[str]:
        computed.append("worker-1")
        return computed

    monkeypatch.setattr(alerts, "listening_workers", workers)
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(look_in_a_thread, range(8))) == len(computed) == 1
    assert Announcement.objects.get().kind == alerts.FIRING


@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize("minutes_ago", [range(10, 21), [*range(5), *range(6, 12)]], ids=["late", "with a gap"])
def test_a_backlog_grows_only_in_consecutive_minutes_until_now(minutes_ago: Sequence[int]) -> None:
    grows(factories.subscription(), minutes_ago)
    look()
    assert Alert.objects.get(name=AlertName.BACKLOG_GROWS).met_since is None


@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize("unknown", [slice(5, 6), slice(1, 10)], ids=["one", "most"])
def test_a_backlog_that_grows_grows_on_until_a_number_says_otherwise(unknown: slice) -> None:
    grows(factories.subscription())
    assert look() == [(alerts.FIRING, AlertName.BACKLOG_GROWS)]
    late = [one.pk for one in MinuteTotal.objects.order_by("minute")[unknown]]
    MinuteTotal.objects.filter(pk__in=late).update(due=None)
    assert look() == [], "counted while a worker was started again"
    MinuteTotal.objects.update(minute=F("minute") - dt.timedelta(hours=1))
    assert look() == [], "none was counted for an hour"
    minute(0, newest=last_minute())
    assert look() == [], "the first that is counted then"
    MinuteTotal.objects.filter(due=None).update(due=4000)
    assert look() == [(alerts.RESOLVED, AlertName.BACKLOG_GROWS)]


@pytest.mark.behaviour("11.8")
def test_a_look_that_takes_long_counts_and_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "LOOK_SECONDS", 0)
    fails_to_summarize(factories.subscription())
    with capture_logs() as logged:
        assert look() == [(alerts.FIRING, AlertName.SUMMARY_FAILED)]
    assert "alerts.look_was_slow" in {one["event"] for one in logged}


@pytest.mark.behaviour("11.8")
def test_without_workers_all_that_was_announced_is_published_however_long_ago() -> None:
    alerts.look(THRESHOLDS)
    box = factories.subscription(event_pattern="Broker.Alert.*", delivery_mode="PULL", endpoint="")
    older = [Announcement(kind="Broker.Line.Paused", details={}) for _ in range(announcements.SLICE)]
    Announcement.objects.bulk_create([*older, Announcement(kind=alerts.FIRING, details={"alert": "LineBlocked"})])
    alerts.look_and_publish(THRESHOLDS)
    assert (Announcement.objects.count(), Delivery.objects.get().subscription) == (0, box)


@pytest.mark.behaviour("11.8")
@pytest.mark.parametrize("events", ["Broker.*", "Broker.Alert.*", ""])
def test_what_is_wrong_with_the_subscription_to_alerts_raises_none_and_is_shown_apart(
    events: str, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (dashboard, metrics):
        monkeypatch.setattr(module, "listening_workers", lambda: ["worker-1"])
    firing = EventType.objects.get(name=alerts.FIRING)
    slack = factories.subscription(event_type=None if events else firing, event_pattern=events)
    held(slack)
    waiting(slack, 1, created_at=LONG_AGO)
    slack.event_type = firing
    minute(0, of=slack, failed=10, newest=last_minute())
    assert look() == []
    assert not {name for name, _ in scraped()} & JUDGED, "alert rules for Prometheus"
    page = admin.get("/admin/")
    assert (page.context["items"], "No alert fires for them" in page.text) == ([], True)
    assert [word in page.context["own_items"] for word in ("Blocked", "failing")] == [True, True]
    held(factories.subscription(factories.subscriber("shop")), TLS)
    broken = Alert.objects.exclude(reason="")
    assert look() == [(alerts.FIRING, AlertName.LINE_BLOCKED), (alerts.FIRING, AlertName.TLS_FAILS)]
    assert {one.reason.rstrip(".").rpartition(" ")[2] for one in broken.all()} == {"shop"}


@pytest.mark.behaviour("11.8")
def test_slack_gets_both_events_by_the_documented_script(receiver: Receiver) -> None:
    (script,) = re.findall(r"```js\n(.+?)```", (ROOT / "docs/how-to/get-alerts.md").read_text(), re.DOTALL)
    slack = factories.subscriber("slack")
    factories.subscription(slack, endpoint=receiver.url("/slack"), event_pattern="Broker.Alert.*", script=script)
    fails_to_summarize(factories.subscription())
    alerts.look(THRESHOLDS)
    mend()
    Alert.objects.update(looked_at=LONG_AGO)
    with broker.running_worker():
        alerts.look(THRESHOLDS)
        wait_until(lambda: len(receiver.of("/slack")) == 2)
    about = re.compile(r"\*SummaryFailed\* (firing|resolved): Run \d+ failed: no memory")
    texts = [json.loads(one.body)["text"] for one in receiver.of("/slack")]
    assert [match[1] for text in texts if (match := about.search(text))] == ["firing", "resolved"]
