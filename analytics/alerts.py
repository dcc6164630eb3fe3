"""Alerts: what needs somebody is noted, and published once when it begins and once when it is over (contract 11.8).

Deliveries of the broker's own events raise none: a subscription to alerts that fails would raise them without end.
"""

import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog
from django.db import Error, transaction
from django.db.models import F, Max
from django.db.models.functions import Coalesce
from django_celery_beat.models import PeriodicTask

from analytics import live_numbers
from analytics.alert_rules import SECONDS_BEFORE, AlertName, AlertThresholds, are_numbers_late, is_beat_missing
from analytics.live_numbers import LastMinutes, Numbers
from analytics.models import Alert, ClockDifference, Run, RunState
from broker_project.core.database_clock import DATABASE_CLOCK, described_difference
from broker_project.core.db import forget_connection, rows, rows_of_each
from delivery import announcements
from delivery.believed_clock import is_doubted
from delivery.dispatch.notify import listening_workers
from delivery.limits import MAX_DUE
from delivery.models import Announcement, Line, MinuteTotal
from delivery.status.backlog import Backlog
from delivery.status.line_status import HeldLine
from subscriptions.models import Subscriber
from subscriptions.names import OWN_EVENTS

FIRING: Final = f"{OWN_EVENTS}Alert.Firing"
RESOLVED: Final = f"{OWN_EVENTS}Alert.Resolved"
LOOK_SECONDS: Final = 30
"""How often all processes together look."""
ASK_SECONDS: Final = 10.0
"""How often each process asks whether it is time."""
MAX_NAMES: Final = 10
"""Names in the reason of an alert."""
MAX_LOOKS: Final = 2
"""For how many looks a process's note of its clock counts: it renews the note several times between two looks.

Looks are counted, not seconds: after an outage of the database every note is old.
"""

IS_TIME: Final = f"""NOT EXISTS (
  SELECT FROM analytics_alert
   WHERE looked_at BETWEEN clock_timestamp() - interval '{LOOK_SECONDS} s' AND clock_timestamp())"""
"""Whether nobody has looked lately."""
TURN: Final = f"SELECT clock_timestamp(), {IS_TIME}"
ASK: Final = f"SELECT {IS_TIME} OR {announcements.ARE_THERE}"
ALONE: Final = "SELECT pg_try_advisory_xact_lock(hashtextextended('alerts', 0))"

log = structlog.get_logger(__name__)


def start_watching(thresholds: AlertThresholds, stopping: threading.Event) -> None:
    """Look after alerts in a thread of its own, until stopped."""
    threading.Thread(target=_watch, args=(thresholds, stopping), name="alerts", daemon=True).start()


def _watch(thresholds: AlertThresholds, stopping: threading.Event) -> None:
    while not stopping.wait(ASK_SECONDS):
        try:
            look_and_publish(thresholds)
        except Error as failure:
            log.warning("alerts.database_failed", reason=failure)
        except Exception:
            log.exception("alerts.failed")
        finally:
            forget_connection()


def look_and_publish(thresholds: AlertThresholds) -> None:
    """Note by how much the own clock differs, if that is too much; look, and publish all that is announced.

    Also what others have announced, whenever that was: while no worker runs, nobody else does.
    """
    DATABASE_CLOCK.refresh()
    if ahead := DATABASE_CLOCK.own_clock_ahead:
        note = ClockDifference(process=f"{socket.gethostname()}-{os.getpid()}", ahead_seconds=ahead)
        ClockDifference.objects.bulk_create(
            [note], update_conflicts=True, unique_fields=["process"], update_fields=["ahead_seconds", "looks"]
        )
    if rows(ASK)[0][0]:
        look(thresholds)
        while announcements.announce():
            pass


def look(thresholds: AlertThresholds) -> int:
    """Note which alerts fire and which are over, to be published; return how many, 0 if somebody has looked lately.

    One process at a time finds out, however long that takes. PostgreSQL ends the transaction of one that stands still.
    """
    with transaction.atomic():
        ((is_alone,),), ((began, is_time),) = rows_of_each([(ALONE, ()), (TURN, ())])
        if not (is_alone and is_time):
            return 0
        ClockDifference.objects.filter(looks__gte=MAX_LOOKS).delete()
        reasons = dict(_conditions(thresholds, began))
        ((now, _),) = rows(TURN)
        if (took := now - began) >= timedelta(seconds=LOOK_SECONDS):
            log.warning("alerts.look_was_slow", seconds=took.total_seconds())
        known = Alert.objects.in_bulk()
        alerts = [known.get(name) or Alert(name=name) for name in AlertName]
        news = [one for alert in alerts for one in _noted(alert, reasons.get(AlertName(alert.name)), now)]
        columns = ("met_since", "fired_at", "reason", "looked_at")
        Alert.objects.bulk_create(alerts, update_conflicts=True, unique_fields=["name"], update_fields=columns)
        Announcement.objects.bulk_create(news)
        ClockDifference.objects.update(looks=F("looks") + 1)  # last: it locks them
    return len(news)


def _noted(alert: Alert, reason: str | None, now: datetime) -> Iterator[Announcement]:
    """Note whether the condition of an alert is met; yield what is to be published of that."""
    alert.looked_at = now
    since = min(alert.met_since or now, now)  # the clock may have been set back
    details = {"alert": alert.name, "reason": reason or alert.reason, "since": since.isoformat()}
    if reason is None:
        if alert.fired_at is not None:
            yield Announcement(kind=RESOLVED, details={**details, "status": "RESOLVED"})
        alert.met_since, alert.fired_at, alert.reason = None, None, ""
        return
    alert.met_since, alert.reason = since, reason
    before = timedelta(seconds=SECONDS_BEFORE.get(AlertName(alert.name), 0))
    if alert.fired_at is None and now - since >= before:
        alert.fired_at = now
        yield Announcement(kind=FIRING, details={**details, "status": "FIRING"})


def _conditions(thresholds: AlertThresholds, now: datetime) -> Iterator[tuple[AlertName, str]]:
    """Yield each alert whose condition is met, and why."""
    yield from _waiting(thresholds, now)
    if newest := live_numbers.last_minute():
        yield from _counted(thresholds, newest, now)
    yield from _parts(now)


def _counted(thresholds: AlertThresholds, newest: datetime, now: datetime) -> Iterator[tuple[AlertName, str]]:
    """Yield what is wrong with what was counted, or with the count."""
    if failing := failing_subscribers(thresholds, live_numbers.counts_by_subscriber(newest).of_published):
        yield AlertName.DELIVERIES_FAIL, f"Over {thresholds.failed_percent} % failed for {_subscribers([*failing])}."
    if number := growing_backlog(thresholds, newest, now):
        grown = f"{number:,} deliveries are due, more each minute for {thresholds.growing_minutes} minutes."
        yield AlertName.BACKLOG_GROWS, grown if number < MAX_DUE else f"{number:,} or more deliveries are due."
    if are_numbers_late(newest, now):
        yield AlertName.NUMBERS_LATE, f"No minute was counted since {newest:%Y-%m-%d %H:%M} UTC."


def _parts(now: datetime) -> Iterator[tuple[AlertName, str]]:
    """Yield which parts do not run, or not well."""
    workers = listening_workers()
    if workers is None:
        yield AlertName.WITHOUT_REDIS, "Redis does not answer: deliveries go on, somewhat later."
    if is_without_workers(workers):
        yield AlertName.WITHOUT_WORKERS, "No worker runs: messages are accepted and wait."
    if is_beat_missing(beat_seen(), now):
        yield AlertName.WITHOUT_BEAT, "Celery beat is not seen: no summary begins on schedule."
    if run := failed_run():
        yield AlertName.SUMMARY_FAILED, f"Run {run.pk} failed: {first_line(run.error)}"
    if is_doubted():
        yield AlertName.CLOCK_JUMPED, "The database's clock may have jumped ahead: nothing expires for ten minutes."
    if clocks := differing_clocks():
        shown = [f"that of {name} is {described_difference(ahead)}" for name, ahead in clocks.items()][:MAX_NAMES]
        yield AlertName.CLOCK_DIFFERS, f"Clocks differ: {_listed(shown, len(clocks))}."


def _waiting(thresholds: AlertThresholds, now: datetime) -> Iterator[tuple[AlertName, str]]:
    """Yield what waits for too long, and what is held."""
    if late := late_subscribers(live_numbers.cached_backlogs(), thresholds, now):
        yield AlertName.DELIVERY_WAITS, f"The oldest delivery has waited for too long for {_subscribers([*late])}."
    if held := blocked_lines(thresholds, now):
        yield AlertName.LINE_BLOCKED, f"Nothing is sent past a delivery that failed, to {_owners(held)}."
    if refused := [one for one in held if one.tls_since and thresholds.is_blocked(one.tls_since, now)]:
        yield AlertName.TLS_FAILS, f"TLS fails with the endpoint of {_owners(refused)}."


def late_subscribers(waiting: Mapping[int, Backlog], thresholds: AlertThresholds, now: datetime) -> dict[int, Backlog]:
    """Return the backlogs in which something that a publisher has published waits for too long, by subscriber."""
    return {
        key: one for key, one in waiting.items() if one.published_since and thresholds.is_late(one.published_since, now)
    }


def blocked_lines(thresholds: AlertThresholds, now: datetime) -> list[HeldLine]:
    """Return the lines that something that a publisher has published holds for too long."""
    found = live_numbers.cached_held_lines()
    return [one for one in found if one.published_since and thresholds.is_blocked(one.published_since, now)]


def failing_subscribers(thresholds: AlertThresholds, last: LastMinutes) -> dict[int, Numbers]:
    """Return the numbers of the subscribers of whose deliveries too many failed."""
    return {key: one for key, one in last.numbers.items() if key and thresholds.is_failing(one.failed, one.eligible)}


def growing_backlog(thresholds: AlertThresholds, newest: datetime, now: datetime) -> int:
    """Return how many deliveries were due after the last minute that knows it if they grow in number until now, else 0.

    Once the alert fires, minutes that were counted late, or not yet, do not end it.
    """
    known = MinuteTotal.objects.filter(minute__lte=newest, due__isnull=False)
    has_grown = _is_firing(AlertName.BACKLOG_GROWS)
    if not has_grown:
        if are_numbers_late(newest, now):
            return 0
        known = known.filter(minute__gte=newest - timedelta(minutes=thresholds.growing_minutes))
    last = known.order_by("-minute").values_list("due", flat=True)[: thresholds.growing_minutes + 1]
    due = [one or 0 for one in last][::-1]
    return due[-1] if thresholds.is_growing(due, has_grown=has_grown) else 0


def is_without_workers(listening: Sequence[str] | None) -> bool:
    """Return whether no worker runs; while Redis does not say who listens, whether the alert for that fires still."""
    return _is_firing(AlertName.WITHOUT_WORKERS) if listening is None else not listening


def _is_firing(name: AlertName) -> bool:
    return Alert.objects.filter(name=name, fired_at__isnull=False).exists()


def differing_clocks() -> dict[str, int]:
    """Return by how many seconds clocks are ahead, negative if they are behind, by the names of their processes."""
    return dict(ClockDifference.objects.order_by("process").values_list("process", "ahead_seconds"))


def beat_seen() -> datetime | None:
    """Return when beat sent its last task, or entered it, as far as it has stored that."""
    last = Max(Coalesce("last_run_at", "date_changed"))
    seen: datetime | None = PeriodicTask.objects.aggregate(last=last)["last"]
    return seen


def failed_run() -> Run | None:
    """Return the run of Spark that has ended last, if it failed."""
    last = Run.objects.filter(state__in=(RunState.PASSED, RunState.FAILED)).order_by("-ended_at").first()
    return last if last and last.state == RunState.FAILED else None


def first_line(error: str) -> str:
    """Return the beginning of an error, for a table or a sentence."""
    return error.partition("\n")[0][:200]


def _subscribers(ids: Sequence[int]) -> str:
    return _listed(Subscriber.objects.filter(pk__in=ids[:MAX_NAMES]).values_list("name", flat=True), len(ids))


def _owners(held: Sequence[HeldLine]) -> str:
    lines = Line.objects.select_related("subscriber").in_bulk([one.line_id for one in held[:MAX_NAMES]])
    return _listed((line.owner for line in lines.values()), len(held))


def _listed(names: Iterable[str], number: int) -> str:
    listed = sorted(names)
    return ", ".join(listed) + (f" and {number - MAX_NAMES} more" if number > MAX_NAMES else "")
