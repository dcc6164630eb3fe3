"""How long deliveries and their attempts take."""

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import LATENCY
from analytics.pipeline.transforms.frames import with_quantiles
from analytics.pipeline.transforms.shapes import hour_of, shaped

OWNER: Final = ("subscriber_id", "subscriber", "event_type_id", "event_type", "kind")
KEYS: Final = ("hour", *OWNER, "measure")


def latency(deliveries: DataFrame, attempts: DataFrame, words: Vocabulary) -> DataFrame:
    """Return a row per hour, subscriber, event type, kind and measure; times in milliseconds.

    - measure `delivery`: from `created_at` to `finished_at`, of the DELIVERED, in the hour they ended
    - measure `mailbox`: the same of those that were fetched: their clients come when they like
    - measure `attempt`: `duration_ms` of all attempts, in the hour they started

    `count` and `max_ms` are exact; `p50_ms` … are `percentile_disc` of the times, within 1 %.
    """
    delivered = deliveries.where(F.isnotnull("finished_at") & (F.col("status") == words.delivered))
    waited = F.when(F.col("kind") == words.pulled_kind, "mailbox").otherwise("delivery")
    times = _times(delivered, waited, "finished_at", "latency_ms").unionByName(
        _times(attempts, F.lit("attempt"), "started_at", "duration_ms")
    )
    return shaped(with_quantiles(times, KEYS), LATENCY)


def _times(rows: DataFrame, measure: Column, at: str, ms: str) -> DataFrame:
    return rows.select(hour_of(at), *OWNER, measure.alias("measure"), F.col(ms).cast("long").alias("ms"))
