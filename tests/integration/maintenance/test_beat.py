"""Beat's schedule in the database: what is in it from the start, what admins make of it, and what is broken."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.beat import event_t
from django.conf import settings
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask, PeriodicTasks

from broker_project.beat import Entry, Schedule
from broker_project.celery import app
from tests.support.admin import browser_with
from tests.support.api import Answer

pytestmark = pytest.mark.django_db(transaction=True)

ROOT = "/admin/django_celery_beat"
HOURS = timedelta(hours=2)
OURS = {
    "do chores": "every 30 seconds",
    "maintain tables": "every 3600 seconds",
    "forget logins": "every 600 seconds",
    "summarize closed hours": "7 * * * * (m/h/dM/MY/d) UTC",
    "summarize closed days": "20 0 * * * (m/h/dM/MY/d) UTC",
}
WITHOUT_SUMMARIES = {name for name in OURS if not name.startswith("summarize")}


class Beat(Schedule):
    """Celery's clock, whose tasks are only noted."""

    sent: list[str]

    def apply_entry(self, entry: Entry, producer: object = None) -> None:  # noqa: ARG002 - celery's signature
        self.sent.append(entry.name)

    def names(self) -> set[str]:
        return set(self.schedule)

    def due(self) -> set[str]:
        """Return what is sent until nothing is due."""
        self.sent = []
        while self.tick(event_t=event_t) == 0:
            pass
        return set(self.sent)


def beat() -> Beat:
    """Start beat; it does not end with this process."""
    started = Beat(app=app)
    started._finalize.cancel()
    return started


@pytest.fixture
def chores() -> PeriodicTask:
    """One of the entries that beat has added."""
    beat().names()
    return PeriodicTask.objects.get(name="do chores")


@pytest.fixture
def summaries(settings: Any) -> None:
    settings.SUMMARIES = True


def edit(admin: Client, task: PeriodicTask, /, **changes: str) -> Answer:
    always = {"enabled": "on", "args": "[]", "kwargs": "{}"}
    form = {"name": task.name, "task": task.task, "interval": str(task.interval_id or ""), **always, **changes}
    return admin.post(f"{ROOT}/periodictask/{task.pk}/change/", form, follow=True)


def test_the_first_beat_finds_an_empty_schedule_and_fills_it(summaries: None) -> None:
    assert beat().names() == OURS.keys()
    assert {task.name: str(task.scheduler) for task in PeriodicTask.objects.all()} == OURS


def test_several_beats_share_one_schedule(summaries: None) -> None:
    first, second = beat(), beat()
    assert first.names() == second.names() == OURS.keys()
    assert PeriodicTask.objects.count() == len(OURS)
    next(first.schedule["maintain tables"]).save()
    next(second.schedule["maintain tables"]).save()
    assert first.names() == second.names() == OURS.keys(), "neither takes the other's notes for a change"


def test_where_there_are_no_summaries_nobody_asks_for_them() -> None:
    assert not settings.SUMMARIES
    assert beat().names() == WITHOUT_SUMMARIES


def test_changes_by_an_admin_survive_a_restart(admin: Client, summaries: None) -> None:
    beat().names()
    slower = IntervalSchedule.objects.create(every=2, period=IntervalSchedule.HOURS)
    edit(admin, PeriodicTask.objects.get(name="maintain tables"), interval=str(slower.pk))
    edit(admin, PeriodicTask.objects.get(name="do chores"), enabled="")
    again = beat()
    assert again.names() == OURS.keys() - {"do chores"}
    assert again.schedule["maintain tables"].schedule.run_every == timedelta(hours=2)


def test_a_running_beat_sees_a_change_by_an_admin(admin: Client, summaries: None) -> None:
    running = beat()
    assert "do chores" in running.names()
    edit(admin, PeriodicTask.objects.get(name="do chores"), enabled="")
    assert "do chores" not in running.names()


def test_saving_a_run_undoes_no_change_made_meanwhile() -> None:
    running = beat()
    entry = next(running.schedule["maintain tables"])
    with CaptureQueriesContext(connection) as asked:
        entry.save()
    (statement,) = asked.captured_queries
    columns = re.findall(r'"(\w+)" =', statement["sql"].partition("WHERE")[0])
    assert columns == ["last_run_at", "total_run_count"]
    assert PeriodicTask.objects.get(name="maintain tables").total_run_count == 1


def test_tasks_missed_while_beat_was_down_run_at_the_start(summaries: None) -> None:
    beat().names()
    before = datetime.now(UTC) - timedelta(days=1, hours=1)
    PeriodicTask.objects.update(last_run_at=before)
    hour = (datetime.now(UTC).hour + 12) % 24
    far = CrontabSchedule.objects.create(minute="0", hour=str(hour))
    PeriodicTask.objects.filter(name="summarize closed days").update(crontab=far)
    assert beat().due() == OURS.keys()


@pytest.mark.behaviour("5.9")
@pytest.mark.parametrize("restarts", [False, True])
def test_a_clock_that_was_ahead_puts_no_task_off(monkeypatch: pytest.MonkeyPatch, *, restarts: bool) -> None:
    running = beat()
    running.names()
    with monkeypatch.context() as ahead:
        ahead.setattr(timezone, "now", lambda: datetime.now(UTC) + HOURS)
        ahead.setattr(Entry, "_default_now", lambda _: timezone.now())
        assert running.due() == WITHOUT_SUMMARIES
    if restarts:
        running.sync()
        running = beat()
    running.due()
    assert max(event.time for event in running._heap) <= time.time() + 3600


BROKEN = {
    "no such day": {"crontab": {"day_of_month": "31", "month_of_year": "2"}},
    "no crontab at all": {"crontab": {"minute": "sixty"}},
    "headers": {"headers": "[]"},
    "arguments": {"args": "{"},
    "neither": {},
}


@pytest.mark.parametrize("fields", BROKEN.values(), ids=BROKEN)
def test_a_broken_entry_stops_no_other(fields: dict[str, Any]) -> None:
    beat().names()
    every = IntervalSchedule.objects.first()
    if "crontab" in fields:
        fields = {"crontab": CrontabSchedule.objects.create(**fields["crontab"])}
    elif fields:
        fields = {"interval": every, **fields}
    PeriodicTask.objects.bulk_create([PeriodicTask(name="broken", task="delivery.maintain", **fields)])
    PeriodicTask.objects.update(last_run_at=datetime.now(UTC) - timedelta(days=1))
    PeriodicTasks.update_changed()
    assert beat().due() - {"broken"} == WITHOUT_SUMMARIES


def test_a_database_that_is_away_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    running = beat()
    with monkeypatch.context() as away:
        away.setattr(running, "enabled_models", refuse)
        assert running.names() == set(), "it waits for the first look"
    assert running.names() == WITHOUT_SUMMARIES
    with monkeypatch.context() as away:
        away.setattr(running, "enabled_models", refuse)
        PeriodicTask.objects.filter(name="do chores").update(enabled=False)
        PeriodicTasks.update_changed()
        assert running.names() == WITHOUT_SUMMARIES
    assert running.names() == WITHOUT_SUMMARIES - {"do chores"}, "seen at the next look"


def refuse() -> None:
    raise OperationalError("away")


def test_required_tasks_can_be_disabled_but_not_deleted(admin: Client, chores: PeriodicTask) -> None:
    own = PeriodicTask.objects.create(name="own", task="delivery.chores", interval=chores.interval)
    for address, form in (
        (f"{ROOT}/periodictask/{chores.pk}/delete/", {"post": "yes"}),
        (f"{ROOT}/intervalschedule/{chores.interval_id}/delete/", {"post": "yes"}),
        (f"{ROOT}/periodictask/", {"action": "delete_selected", "_selected_action": [chores.pk], "post": "yes"}),
    ):
        admin.post(address, form)
    assert PeriodicTask.objects.filter(pk=chores.pk).exists()
    admin.post(f"{ROOT}/periodictask/{own.pk}/delete/", {"post": "yes"})
    assert not PeriodicTask.objects.filter(pk=own.pk).exists()


@pytest.mark.parametrize(
    ("fields", "comes"),
    [
        ({}, True),
        ({"day_of_month": "29", "month_of_year": "2"}, True),
        ({"day_of_month": "31", "month_of_year": "2,4"}, False),
        ({"day_of_week": "0,6"}, True),
        ({"day_of_week": "7"}, False),
    ],
)
def test_times_that_never_come_are_refused_in_words(admin: Client, fields: dict[str, str], *, comes: bool) -> None:
    page = add_crontab(admin, **fields).content.decode()
    saved = CrontabSchedule.objects.filter(minute="0", timezone="UTC", **fields)
    assert ("This would never run." not in page, saved.exists()) == (comes, comes)


def add_crontab(admin: Client, **fields: str) -> Answer:
    every = dict.fromkeys(("hour", "day_of_month", "month_of_year", "day_of_week"), "*")
    tasks = dict.fromkeys(("periodictask_set-TOTAL_FORMS", "periodictask_set-INITIAL_FORMS"), "0")
    form = {"minute": "0", **every, "timezone": "UTC", **tasks, **fields}
    return admin.post(f"{ROOT}/crontabschedule/add/", form, follow=True)


@pytest.mark.parametrize("page", ["periodictask", "intervalschedule", "crontabschedule", "clockedschedule"])
def test_every_page_shows(admin: Client, page: str, summaries: None) -> None:
    beat().names()
    for address in (f"{ROOT}/{page}/", f"{ROOT}/{page}/add/"):
        assert admin.get(address).status_code == 200


def test_an_entry_shows_what_it_does_and_lists_the_tasks_there_are(admin: Client, chores: PeriodicTask) -> None:
    page = admin.get(f"{ROOT}/periodictask/{chores.pk}/change/").content.decode()
    assert "Wakes lines that have due work" in page
    assert '<option value="delivery.maintain">' in page


@pytest.fixture
def operator() -> Client:
    """Somebody with every permission there is for schedules, who is no superuser."""
    return browser_with(*(f"django_celery_beat.{verb}_periodictask" for verb in ("view", "add", "change", "delete")))


def test_others_than_superusers_say_when_and_nothing_of_what(operator: Client, chores: PeriodicTask) -> None:
    slower = IntervalSchedule.objects.create(every=2, period=IntervalSchedule.HOURS)
    given = {"interval": str(slower.pk), "task": "delivery.maintain", "regtask": "delivery.maintain"}
    edit(operator, chores, **given, name="mine", args='["x"]', kwargs='{"x": 1}', queue="analytics")
    now = PeriodicTask.objects.get(pk=chores.pk)
    assert (now.name, now.task, now.args, now.kwargs, now.queue) == ("do chores", "delivery.chores", "[]", "{}", None)
    assert now.interval == slower


def test_others_than_superusers_schedule_nothing_of_their_own(operator: Client, chores: PeriodicTask) -> None:
    own = PeriodicTask.objects.create(name="own", task="delivery.chores", interval=chores.interval)
    form = {"regtask": own.task, "interval": str(own.interval_id), "args": "[]", "kwargs": "{}", "name": "mine"}
    assert operator.post(f"{ROOT}/periodictask/add/", form).status_code == 403
    for page in ("change", "delete"):
        assert operator.post(f"{ROOT}/periodictask/{own.pk}/{page}/", {**form, "post": "yes"}).status_code == 403
    assert PeriodicTask.objects.exclude(name__in=OURS).get() == own


@pytest.mark.parametrize("action", ["run_tasks", "enable_tasks", "disable_tasks", "toggle_tasks", "delete_selected"])
def test_a_list_of_entries_does_nothing_to_them(admin: Client, chores: PeriodicTask, action: str) -> None:
    sent = {"action": action, "_selected_action": [chores.pk]}
    assert admin.post(f"{ROOT}/periodictask/", sent).status_code == 403
    assert PeriodicTask.objects.get(pk=chores.pk).enabled
