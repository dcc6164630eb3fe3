"""Celery tasks of the queue `analytics`: ids in, one call each; whatever comes twice does no harm."""

import threading
from typing import Final

from celery import shared_task
from celery.signals import worker_shutting_down
from django.conf import settings

from analytics import retention_of_summaries, run_requests, runs
from analytics.spark_settings import spark_terms

stopping: Final = threading.Event()
"""Set when the worker is to end: what Spark has not done then is done again."""


@shared_task(name="analytics.summarize_hours")
def summarize_hours() -> None:
    """Summarize the hours that have closed, and days that were missed; take up runs whose hint was lost."""
    if settings.SUMMARIES:
        run_requests.request_hours(call_seconds=settings.SYNC_SECONDS)
        run_requests.request_missed_days(call_seconds=settings.SYNC_SECONDS)
    runs.take_up(spark_terms(), stopping=stopping)


@shared_task(name="analytics.summarize_days")
def summarize_days() -> None:
    """Summarize the days that were sealed, or touched since; forget what is older than it is kept."""
    if settings.SUMMARIES:
        run_requests.request_days(call_seconds=settings.SYNC_SECONDS)
    runs.take_up(spark_terms(), stopping=stopping)
    retention_of_summaries.forget(settings.LAKE, keep_days=max(settings.SUMMARY_DAYS, settings.RETENTION_DAYS))


@shared_task(name=run_requests.SUMMARIZE)
def summarize(run_id: int) -> None:
    """Do a run that somebody has asked for, and what else waits."""
    runs.run(run_id, spark_terms(), stopping=stopping)
    runs.take_up(spark_terms(), stopping=stopping)


@worker_shutting_down.connect
def stop_summarizing(**_signal: object) -> None:
    """End Spark: the worker would wait for it."""
    stopping.set()
