"""Every hourly summary, and how it is made."""

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame

from analytics.pipeline.job import Vocabulary, Window
from analytics.pipeline.tables import Table
from analytics.pipeline.transforms.facts import Silver

Summary = Callable[[Silver, Window, Vocabulary], DataFrame]

HOURLY_SUMMARIES: Final[Mapping[Table, Summary]] = {}
"""By the table that the result is a part of, rows of this window only."""
