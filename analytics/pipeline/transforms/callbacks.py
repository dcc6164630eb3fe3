"""What becomes of callbacks."""

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.pipeline.job import Vocabulary
from analytics.pipeline.tables import CALLBACKS_SUMMARY
from analytics.pipeline.transforms.facts import Silver
from analytics.pipeline.transforms.shapes import hour_of, shaped
from analytics.pipeline.transforms.whose import known_event_types

STEPS: Final = ("asked", "answered", "forwarded")


def callbacks(silver: Silver, words: Vocabulary) -> DataFrame:
    """Return a row per hour and event type, that of the message whose publisher wanted to know.

    - `asked`: callbacks made in the hour
    - `answered`: replies stored in it, messages with `answers`; one may answer a whole chain of callbacks
    - `forwarded`: replies DELIVERED in it
    """
    replies = silver.deliveries.where(F.isnotnull("finished_at") & (F.col("kind") == words.reply_kind))
    forwarded = replies.where(F.col("status") == words.delivered)
    steps = (
        _step(silver.callbacks, "asked", "created_at")
        .unionByName(_step(silver.messages.where("answers IS NOT NULL"), "answered", "published_at"))
        .unionByName(_step(forwarded, "forwarded", "finished_at"))
    )
    counts = steps.groupBy("hour", "event_type_id").agg(
        *(F.count_if(F.col("step") == name).alias(name) for name in STEPS)
    )
    return shaped(counts.join(known_event_types(silver.event_types), "event_type_id", "left"), CALLBACKS_SUMMARY)


def _step(rows: DataFrame, step: str, at: str) -> DataFrame:
    return rows.select(hour_of(at), "event_type_id", F.lit(step).alias("step"))
