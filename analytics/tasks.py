"""Celery tasks of the queue `analytics`, one call each, which it does no harm to repeat; every worker's alerts."""

import threading
from typing import Final

from celery import shared_task
from celery.signals import worker_ready, worker_shutting_down
from django.conf import settings

from analytics import alerts, run_requests, runs, summaries
from analytics.spark_process import spark_settings

stopping: Final = threading.Event()
"""Set when the worker shuts down; the windows that Spark has not done are done later."""


@shared_task(name="analytics.summarize_hours")
def summarize_hours() -> None:
    """Summarize the hours that have closed and the days that were missed; do all waiting runs."""
    if settings.SUMMARIES:
        run_requests.request_hours()
        run_requests.request_missed_days()
    runs.start_waiting(spark_settings(), stopping=stopping)


@shared_task(name="analytics.summarize_days")
def summarize_days() -> None:
    """Summarize the days that were sealed or got late data; delete what is past its retention."""
    if settings.SUMMARIES:
        run_requests.request_days()
    runs.start_waiting(spark_settings(), stopping=stopping)
    summaries.apply_retention(settings.LAKE, keep_days=max(settings.SUMMARY_DAYS, settings.RETENTION_DAYS))


@shared_task(name=run_requests.SUMMARIZE)
def summarize(run_id: int) -> None:
    """Do a requested run, and all other waiting runs."""
    runs.run(run_id, spark_settings(), stopping=stopping)
    runs.start_waiting(spark_settings(), stopping=stopping)


@worker_ready.connect
def watch_alerts(**_signal: object) -> None:
    """Look after alerts, whichever queues this worker serves."""
    alerts.start_watching(settings.ALERT_THRESHOLDS, stopping)


@worker_shutting_down.connect
def stop_summarizing(**_signal: object) -> None:
    """End Spark, which the worker would otherwise wait for, and look after alerts no more."""
    stopping.set()
