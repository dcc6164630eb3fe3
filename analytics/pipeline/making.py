"""The layers of a window, one made of the other: each is in the lake before the next is made of what is there.

So nothing is computed twice or kept in memory, and what is summarized is what the lake holds.
"""

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline import tables
from analytics.pipeline.extraction import read
from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.lake.lake import Lake
from analytics.pipeline.lake.manifests import Manifest
from analytics.pipeline.lake.stages import Stage
from analytics.pipeline.tables import Table
from analytics.pipeline.transforms import silver as cleaning
from analytics.pipeline.transforms.budgets import budgets
from analytics.pipeline.transforms.daily import anomalies
from analytics.pipeline.transforms.facts import Facts, Silver
from analytics.pipeline.transforms.summaries import HOURLY_SUMMARIES

Frames = Mapping[Table, DataFrame]

DAYS_BEFORE: Final = 28
"""Four weeks, of which budgets and anomalies are made besides the day itself."""


def facts(lake: Lake, stage: Stage, window: Window, *, slice_rows: int) -> Frames:
    """Copy the facts of a window out of PostgreSQL."""
    return {table: stage.keep(table, read(lake.spark, table, window, slice_rows=slice_rows)) for table in tables.BRONZE}


def clean(stage: Stage, facts: Frames, words: Vocabulary) -> Silver:
    """Make silver of bronze; attempts are made of the deliveries that are kept by then."""
    bronze = Facts(**{table.name: frame for table, frame in facts.items()})
    silver = cleaning.silver(bronze, words)
    deliveries = stage.keep(tables.SILVER_DELIVERIES, silver.deliveries)
    attempts = stage.keep(tables.SILVER_ATTEMPTS, cleaning.attempts(bronze.attempts, deliveries, words))
    messages = stage.keep(tables.SILVER_MESSAGES, silver.messages)
    return replace(silver, deliveries=deliveries, attempts=attempts, messages=messages)


def audited_before(lake: Lake, window: Window, say: Callable[[str], None]) -> DataFrame:
    """Return what the ordering audit has of the hours before a window, up to four weeks back."""
    days = (lake.known(window.day - dt.timedelta(days=days), say) for days in range(DAYS_BEFORE, -1, -1))
    return lake.of_days(tables.AUDIT, days).where(F.col("hour") < window.start)


def summaries(stage: Stage, silver: Silver, window: Window, words: Vocabulary) -> None:
    """Make gold of silver."""
    for table, make in HOURLY_SUMMARIES.items():
        stage.keep(table, make(silver, window, words))


def summaries_of_day(
    lake: Lake, stage: Stage, manifest: Manifest, objective: float, say: Callable[[str], None]
) -> None:
    """Make what takes the whole day of `manifest`, as far as it is known, and four weeks before."""
    before = (lake.known(manifest.day - dt.timedelta(days=days), say) for days in range(DAYS_BEFORE, 0, -1))
    days = (*before, manifest)
    reliability, latency = lake.of_days(tables.RELIABILITY, days), lake.of_days(tables.LATENCY, days)
    stage.keep(tables.BUDGETS, budgets(reliability, manifest.day, objective))
    known = frozenset(hour for one in days for hour in one.hours)
    stage.keep(tables.ANOMALIES, anomalies(reliability, latency, manifest.day, known))
