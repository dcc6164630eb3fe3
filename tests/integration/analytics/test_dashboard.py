"""The dashboard: what needs attention, for whom it is, and how many queries it takes."""

import datetime as dt
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from django.utils.html import strip_tags
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from analytics.admin import dashboard
from analytics.models import Run, RunState
from broker_project.stack.folders import ROOT
from delivery.models import Delivery, Hold, Message, MessageOutcome, MinuteCount, MinuteTotal
from delivery.status.callback_status import CallbackState
from delivery.status.line_status import LineState
from delivery.status.queue_status import GroupState
from delivery.statuses import DeliveryStatus
from subscriptions.models import DeliveryMode, EventKind, Subscription
from tests.integration.analytics.test_live_numbers import minute, waiting
from tests.support import broker, factories
from tests.support.admin import browser_with

pytestmark = pytest.mark.django_db

LONG_AGO = timezone.now() - dt.timedelta(hours=2)
SOON = dt.timedelta(minutes=2, seconds=50)


@pytest.fixture(autouse=True)
def everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "listening_workers", lambda: ["worker-1"])
    every = IntervalSchedule.objects.create(every=30, period="seconds")
    PeriodicTask.objects.create(name="do chores", interval=every, last_run_at=timezone.now())


def items(admin: Client) -> list[str]:
    """Return what needs attention, each as the text of its cells."""
    found = admin.get("/admin/").context["items"]
    return [" | ".join(cell.strip() for cell in strip_tags(row).split("\n") if cell.strip()) for row in rows_of(found)]


def rows_of(table: str) -> list[str]:
    return [row.partition(">")[2] for row in table.split("<tbody")[1:]] if table else []


def held(wanted: Subscription, delivery: Delivery) -> None:
    at = {"since": LONG_AGO, "due_at": timezone.now() + SOON}
    Hold.objects.create(delivery=delivery, line_id=delivery.line_id or 0, reason="503", failures=9, **at)


def test_nothing_needs_attention_while_all_goes_well(admin: Client) -> None:
    shop = factories.subscription(factories.subscriber("shop"))
    waiting(shop, 1)
    minute(0, of=shop, took={10: 99}, failed=1)
    page = admin.get("/admin/")
    assert "Nothing needs attention" in page.text
    assert ("worker-1 (0 lines)" in page.text, "99.00 %" in page.text, "Waiting now: 1," in page.text) == (True,) * 3


def test_what_is_held_late_failing_or_undecided_needs_attention(admin: Client) -> None:
    shop, late, box, bad, odd, aside = (
        factories.subscription(factories.subscriber(name)) for name in ("shop", "late", "box", "bad", "odd", "aside")
    )
    worker = factories.subscription(factories.subscriber("worker"), factories.event_type(kind=EventKind.QUEUE))
    first, _ = waiting(shop, 2, created_at=LONG_AGO)
    held(shop, first)
    waiting(late, 3, created_at=LONG_AGO, waits_for="RETRY", due_at=timezone.now() + dt.timedelta(minutes=90))
    Subscription.objects.filter(pk=box.pk).update(delivery_mode=DeliveryMode.PULL, endpoint="")
    waiting(box, 1, created_at=LONG_AGO)
    retry_line = broker.retry_line_of(aside.subscriber)
    waiting(aside, 2, created_at=LONG_AGO, line=retry_line, waits_for="RETRY", due_at=timezone.now() + SOON)
    broker.publish_bodies(worker.event_type, b"1")
    Delivery.objects.filter(subscription=worker).update(created_at=LONG_AGO)
    minute(0, of=bad, took={10: 90}, failed=10)
    waiting(odd, 1, waits_for="RELEASE", status="HELD")
    run = Run.objects.create(state=RunState.FAILED, error="no memory\nmore", ended_at=LONG_AGO, started_at=LONG_AGO)
    assert items(admin) == [
        "shop | Blocked | 503 | 2 h ago | 2 | in 2 min",
        "late | Retry scheduled | Its oldest delivery has waited for long. | 2 h ago | 3 | in 1 h",
        "box | mailbox | Nobody has acknowledged its oldest delivery. | 2 h ago | 1 | -",
        "aside | Retry scheduled | Its oldest delivery has waited for long. | 2 h ago | 2 | in 2 min",
        "worker | Waiting for a worker | Its oldest delivery has waited for long. | 2 h ago | 1 | -",
        "bad | failing | 10 of 100 deliveries failed in the last 1 min. | - | - | -",
        "Deliveries | Needs decision | Their reasons say why. Release or cancel them. | 0 s ago | 1 | -",
        f"run {run.pk} | Failed | no memory | 2 h ago | - | -",
    ]


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([], "Workers | none runs | Nothing is delivered. Messages are accepted and wait. | - | - | -"),
        (None, "Redis | no answer | Deliveries go on without it, somewhat later. | - | - | -"),
    ],
)
def test_parts_that_are_not_seen_need_attention(
    admin: Client, monkeypatch: pytest.MonkeyPatch, workers: list[str] | None, expected: str
) -> None:
    monkeypatch.setattr(dashboard, "listening_workers", lambda: workers)
    PeriodicTask.objects.update(last_run_at=LONG_AGO)
    minute(120)
    why = "Live numbers are of then: no worker counts, or a transaction has been writing since."
    beat = "Celery beat | not seen | No summary begins on schedule. Deliveries do not depend on it. | 2 h ago | - | -"
    assert items(admin) == [expected, f"Live numbers | late | {why} | 2 h ago | - | -", beat]


def test_ten_are_shown_and_the_others_counted(admin: Client, django_assert_max_num_queries: Any) -> None:
    for number in range(23):
        wanted = factories.subscription(factories.subscriber(f"shop-{number:02}"))
        first, *_ = waiting(wanted, 2, created_at=LONG_AGO + dt.timedelta(seconds=number))
        if number % 2:
            held(wanted, first)
        minute(number, of=wanted, failed=1)
    MinuteCount.objects.filter(minute=MinuteTotal.objects.latest("minute").minute).update(subscriber_id=999_999)
    with django_assert_max_num_queries(45):
        found = items(admin)
    whats = [one.split(" | ")[1] for one in found]
    assert {what: whats.count(what) for what in whats} == {
        "Blocked": 10,
        "Waiting for a worker": 10,
        "waiting": 1,
        "failing": 11,
    }
    assert [one for one in found if "more" in one] == ["3 more | waiting | - | - | -", "13 more | failing | - | - | -"]
    assert "/live/?subscriber=999999" not in admin.get("/admin/").text


def test_before_the_first_message_it_says_what_to_do(admin: Client) -> None:
    factories.subscription(event_type=factories.event_type("Shop.Paid"))
    page = admin.get("/admin/").text
    assert "Nothing has been published yet" in page
    assert page.count("✓ done") == 1
    assert "/api/v1/events/Shop.Paid -H" in page
    Message.objects.create(body=b"", size=0, content_type="text/plain", outcome="ROUTED")
    assert "Nothing has been published yet" not in admin.get("/admin/").text


def test_whoever_may_not_see_it_is_told_what_is_missing() -> None:
    client = browser_with("analytics.view_run")
    assert client.get("/admin/analytics/run/live/").status_code == 403
    assert "Live numbers" not in client.get("/admin/").text
    page = browser_with("delivery.view_line").get("/admin/").text
    assert "the permission analytics.view_run. The role Viewer has it; superusers assign roles." in page
    assert "Waiting now" not in page


def test_the_documentation_has_the_word_of_each_state() -> None:
    page = (ROOT / "docs" / "how-to" / "watch-the-broker.md").read_text()
    rows = re.findall(r"^\| .*\| `(\w+)` \| (.*) \|$", page, re.MULTILINE)
    documented = (DeliveryStatus, LineState, GroupState, CallbackState, MessageOutcome)
    assert rows == [word for states in documented for word in states.choices]


def test_it_links_to_flower(admin: Client, settings: Any) -> None:
    assert ">Flower</a>" not in admin.get("/admin/").text
    settings.FLOWER_URL = "https://flower.example.org"
    assert 'href="https://flower.example.org">Flower</a>' in admin.get("/admin/").text
