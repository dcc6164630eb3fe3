"""Every hourly summary, and how it is made."""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.tables import (
    AUDIT,
    BACKLOG,
    CALLBACKS_SUMMARY,
    ENDPOINTS,
    FINDINGS,
    LATENCY,
    RELIABILITY,
    SENDERS,
    SHARES,
    VOLUME,
    Table,
)
from analytics.pipeline.transforms.audit import audit, findings
from analytics.pipeline.transforms.callbacks import callbacks
from analytics.pipeline.transforms.endpoints import endpoints
from analytics.pipeline.transforms.facts import Silver
from analytics.pipeline.transforms.hourly import backlog
from analytics.pipeline.transforms.latency import latency
from analytics.pipeline.transforms.reliability import reliability
from analytics.pipeline.transforms.senders import senders
from analytics.pipeline.transforms.shares import shares
from analytics.pipeline.transforms.volume import volume

Summary = Callable[[Silver, Window, Vocabulary], DataFrame]

HOURLY_SUMMARIES: Final[Mapping[Table, Summary]] = {
    RELIABILITY: lambda silver, _, words: reliability(silver.deliveries, words),
    LATENCY: lambda silver, _, words: latency(silver.deliveries, silver.attempts, words),
    ENDPOINTS: lambda silver, window, _: endpoints(silver.attempts, window),
    VOLUME: lambda silver, *_: volume(silver.messages),
    CALLBACKS_SUMMARY: lambda silver, _, words: callbacks(silver, words),
    BACKLOG: lambda silver, window, _: backlog(silver, window),
    SENDERS: lambda silver, _, words: senders(silver.deliveries, words),
    SHARES: lambda silver, _, words: shares(silver.deliveries, words),
    AUDIT: lambda silver, _, words: audit(silver, words),
    FINDINGS: lambda silver, _, words: findings(silver, words),
}
"""By the table that the result is a part of: rows of this window only."""
