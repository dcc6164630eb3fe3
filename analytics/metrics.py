"""How the broker does now, as gauges for Prometheus: a few for each subscriber at most, and none for each message."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from analytics import live_numbers
from analytics.models import Run, RunState
from delivery.dispatch.notify import listening_workers
from delivery.status.queue_status import senders
from subscriptions.models import Subscriber

MAX_SUBSCRIBERS: Final = 1_000
"""Of those for which something waits: whose oldest delivery has waited longest."""
PERCENTS: Final = ("0.5", "0.95", "0.99")


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """What a scrape collects; it costs about ten queries; those that read most are cached for some seconds."""

    now: datetime

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from _last_minute()
        yield from _waiting(self.now)
        yield from _lines()
        yield from _running()


def _last_minute() -> Iterator[Metric]:
    """Yield what ended in the last minute that was counted."""
    newest = live_numbers.last_minute()
    if newest is None:
        return
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


def _waiting(now: datetime) -> Iterator[Metric]:
    """Yield how much waits for whom, and for how long; delayed deliveries wait for nobody."""
    found = live_numbers.cached_backlogs()
    latest = sorted(found, key=lambda key: found[key].oldest_since)[:MAX_SUBSCRIBERS]
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
        oldest.add_metric([names[key]], (now - found[key].oldest_since).total_seconds())
    yield waiting
    yield oldest


def _lines() -> Iterator[Metric]:
    """Yield what is held, and what QUEUE senders have to do."""
    held = len(live_numbers.cached_held_lines())
    yield GaugeMetricFamily("broker_held_lines", "Lines that wait for a delivery that failed.", held)
    groups = GaugeMetricFamily(
        "broker_waiting_groups", "Message groups that wait for a QUEUE sender; counted to a limit.", labels=["queue"]
    )
    for one in senders():
        groups.add_metric([one.queue], one.line.waiting)
    yield groups


def _running() -> Iterator[Metric]:
    """Yield which parts are seen."""
    workers = listening_workers()
    yield GaugeMetricFamily("broker_redis_up", "Whether Redis answers.", workers is not None)
    if workers is not None:
        yield GaugeMetricFamily("broker_workers", "Workers that listen for work.", len(workers))
    newest = Run.objects.filter(state__in=(RunState.PASSED, RunState.FAILED)).order_by("-pk").first()
    if newest:
        has_failed = newest.state == RunState.FAILED
        yield GaugeMetricFamily("broker_last_summary_failed", "Whether the last run of Spark has failed.", has_failed)
