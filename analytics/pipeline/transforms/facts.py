"""What the transforms are given and make, each a frame with the columns of the table of its name."""

from dataclasses import dataclass

from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class Facts:
    """One window as extracted: `tables.BRONZE`."""

    deliveries: DataFrame
    unfinished: DataFrame
    attempts: DataFrame
    messages: DataFrame
    waiting: DataFrame
    callbacks: DataFrame
    subscribers: DataFrame
    subscriptions: DataFrame
    event_types: DataFrame
    publishers: DataFrame
    lines: DataFrame
    status_changes: DataFrame
    releases: DataFrame


@dataclass(frozen=True, slots=True)
class Silver:
    """What hourly summaries are made of: `tables.SILVER`, and the facts that need no cleaning."""

    deliveries: DataFrame
    attempts: DataFrame
    messages: DataFrame
    waiting: DataFrame
    callbacks: DataFrame
    subscribers: DataFrame
    subscriptions: DataFrame
    event_types: DataFrame
    lines: DataFrame
    status_changes: DataFrame
    releases: DataFrame
    audit: DataFrame | None = None
    """`tables.AUDIT` of the hours before the window; None where none of them is known."""
