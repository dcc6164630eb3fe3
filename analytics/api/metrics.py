"""How the broker does now, as Prometheus reads it: a few gauges for each subscriber at most, and none for each message.

Those that alert rules judge by leave out the broker's own events, as its alerts do (contract 11.8).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from rest_framework.request import Request

from analytics import live_numbers
from analytics.alerts import beat_seen, differing_clocks, failed_run, is_without_workers
from broker_project.core.api.records import operation
from broker_project.core.database_clock import DATABASE_CLOCK
from delivery.believed_clock import is_doubted
from delivery.dispatch.notify import listening_workers
from delivery.models import MinuteTotal
from delivery.status.queue_status import senders
from subscriptions.api.permissions import MayManage
from subscriptions.models import Scope, Subscriber

MAX_SUBSCRIBERS: Final = 1_000
"""Of those for which something waits: whose oldest delivery has waited longest."""
PERCENTS: Final = ("0.5", "0.95", "0.99")


@operation("get", Scope.READ, MayManage, responses={(200, "text/plain"): OpenApiTypes.STR})
def read_metrics(request: Request) -> HttpResponse:  # noqa: ARG001 - every operation gets it
    """Read the broker's metrics, in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(BrokerMetrics(DATABASE_CLOCK.now()))
    return HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """What a scrape collects; it costs about ten queries; those that read most are cached for some seconds."""

    now: datetime

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        if newest := live_numbers.last_minute():
            yield from _last_minute(newest)
            yield from _last_hour(newest)
        yield from _waiting(self.now)
        yield from _lines(self.now)
        yield from _running(self.now)


def _last_minute(newest: datetime) -> Iterator[Metric]:
    """Yield what ended in the last minute that was counted."""
    found = live_numbers.total(newest, 1)
    ended = GaugeMetricFamily(
        "broker_last_minute_deliveries", "Deliveries that ended in the last minute counted.", labels=["outcome"]
    )
    ended.add_metric(["delivered"], found.delivered)
    ended.add_metric(["failed"], found.failed)
    ended.add_metric(["other"], found.deliveries - found.eligible)
    yield ended
    took = GaugeMetricFamily(
        "broker_last_minute_latency_seconds",
        "Time from published to delivered, of what was delivered in the last minute counted.",
        labels=["quantile"],
    )
    for percent, milliseconds in zip(PERCENTS, found.took or (), strict=False):
        took.add_metric([percent], milliseconds / 1000)
    yield took
    yield GaugeMetricFamily(
        "broker_last_minute_end_timestamp_seconds", "End of the last minute counted.", newest.timestamp() + 60
    )


def _last_hour(newest: datetime) -> Iterator[Metric]:
    """Yield which share of the deliveries to a subscriber failed, and how much was due at the end."""
    numbers = live_numbers.counts_by_subscriber(newest).of_published.numbers
    failed = {key: one.failed / one.eligible for key, one in numbers.items() if key and one.failed}
    worst = sorted(failed, key=lambda key: -failed[key])[:MAX_SUBSCRIBERS]
    ratio = GaugeMetricFamily(
        "broker_last_hour_failed_ratio", "Share of a subscriber's deliveries that failed.", labels=["subscriber"]
    )
    for key, name in Subscriber.objects.filter(pk__in=worst).values_list("pk", "name"):
        ratio.add_metric([name], failed[key])
    yield ratio
    due = MinuteTotal.objects.filter(minute=newest).values_list("due", flat=True).first()  # it may be counted again
    if due is not None:
        yield GaugeMetricFamily("broker_due_deliveries", "Due after the last minute counted, to a limit.", due)


def _waiting(now: datetime) -> Iterator[Metric]:
    """Yield how much waits for whom, and for how long; delayed deliveries wait for nobody."""
    found = live_numbers.cached_backlogs()
    latest = sorted(found, key=lambda key: found[key].published_since or now)[:MAX_SUBSCRIBERS]
    names = dict(Subscriber.objects.filter(pk__in=latest).values_list("pk", "name"))
    waiting = GaugeMetricFamily(
        "broker_waiting_deliveries",
        "Deliveries that wait, of the subscribers with the oldest; counted to a limit.",
        labels=["subscriber"],
    )
    oldest = GaugeMetricFamily(
        "broker_oldest_waiting_seconds", "How long the oldest delivery of a subscriber waits.", labels=["subscriber"]
    )
    for key in (key for key in latest if key in names):
        waiting.add_metric([names[key]], found[key].waiting)
        if since := found[key].published_since:
            oldest.add_metric([names[key]], (now - since).total_seconds())
    yield waiting
    yield oldest


def _lines(now: datetime) -> Iterator[Metric]:
    """Yield what is held, and what QUEUE senders have to do."""
    held = live_numbers.cached_held_lines()
    yield GaugeMetricFamily("broker_held_lines", "Lines that wait for a delivery that failed.", len(held))
    longest = GaugeMetricFamily(
        "broker_longest_hold_seconds", "How long the line that is held longest has been held.", labels=["cause"]
    )
    since = {
        "tls": [one.tls_since for one in held if one.tls_since],
        "other": [one.published_since for one in held if one.published_since and one.published_since != one.tls_since],
    }
    for cause, times in since.items():
        if times:
            longest.add_metric([cause], (now - min(times)).total_seconds())
    yield longest
    groups = GaugeMetricFamily(
        "broker_waiting_groups", "Message groups that wait for a QUEUE sender; counted to a limit.", labels=["queue"]
    )
    for one in senders():
        groups.add_metric([one.queue], one.line.waiting)
    yield groups


def _running(now: datetime) -> Iterator[Metric]:
    """Yield which parts are seen, and are right."""
    workers = listening_workers()
    yield GaugeMetricFamily("broker_redis_up", "Whether Redis answers.", workers is not None)
    if workers is not None or is_without_workers(workers):
        yield GaugeMetricFamily("broker_workers", "Workers that listen for work.", len(workers or ()))
    if seen := beat_seen():
        age = (now - seen).total_seconds()
        yield GaugeMetricFamily("broker_beat_seen_seconds", "How long ago Celery beat was seen.", age)
    has_failed = failed_run() is not None
    yield GaugeMetricFamily("broker_last_summary_failed", "Whether the last run of Spark has failed.", has_failed)
    yield GaugeMetricFamily("broker_clock_doubted", "Whether the database's clock may have jumped.", is_doubted())
    clocks = GaugeMetricFamily(
        "broker_clock_ahead_seconds",
        "By how much the clock of a process is ahead of the database's, if it differs.",
        labels=["process"],
    )
    for process, ahead in differing_clocks().items():
        clocks.add_metric([process], ahead)
    yield clocks
