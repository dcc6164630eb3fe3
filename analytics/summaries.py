"""The summaries by name: where each is kept, and its rows within a range."""

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Model, QuerySet

from analytics.models import (
    Anomaly,
    AuditFinding,
    Backlog,
    CallbackCount,
    EndpointHealth,
    EndpointShare,
    ErrorBudget,
    Latency,
    OrderingAudit,
    Reliability,
    SenderLoad,
    Volume,
)
from analytics.pipeline import tables
from analytics.pipeline.tables import Table
from analytics.ranges import Range


@dataclass(frozen=True, slots=True)
class Summary:
    """One table of the lake's gold, as PostgreSQL has it."""

    table: Table
    model: type[Model]

    @property
    def columns(self) -> dict[str, str]:
        """The type of each column, as Spark writes it."""
        return dict(column.split(" ", 1) for column in self.table.columns.split(", "))

    @property
    def time(self) -> str:
        """The column by which its rows are selected and sorted: hour, at or day."""
        return next(iter(self.columns))

    @property
    def description(self) -> str:
        """What one row is."""
        return (self.model.__doc__ or "").strip()


MODELS: Final[Mapping[Table, type[Model]]] = {
    tables.RELIABILITY: Reliability,
    tables.LATENCY: Latency,
    tables.ENDPOINTS: EndpointHealth,
    tables.BACKLOG: Backlog,
    tables.VOLUME: Volume,
    tables.SENDERS: SenderLoad,
    tables.SHARES: EndpointShare,
    tables.CALLBACKS_SUMMARY: CallbackCount,
    tables.AUDIT: OrderingAudit,
    tables.FINDINGS: AuditFinding,
    tables.BUDGETS: ErrorBudget,
    tables.ANOMALIES: Anomaly,
}
SUMMARIES: Final = {table.name: Summary(table, model) for table, model in MODELS.items()}

NARROWING: Final = ("subscriber", "event_type", "publisher", "kind")
"""The columns by whose value rows can be selected, in the summaries that have them."""


def rows_of(summary: Summary, within: Range, values: Mapping[str, Any]) -> QuerySet[Model]:
    """Return the rows of a range whose columns have these values, the oldest first."""
    start, end = _bounds(summary, within)
    rows = summary.model._default_manager.filter(**{f"{summary.time}__gte": start, f"{summary.time}__lt": end})  # noqa: SLF001 - Django's name for it
    return rows.filter(**values).order_by(summary.time, "pk")


def _bounds(summary: Summary, within: Range) -> tuple[dt.date, dt.date]:
    """Return the range as its times are written: a day is in a range that begins during it."""
    if summary.columns[summary.time] != "date":
        return within.start, within.end
    whole = within.end.time() == dt.time.min
    return within.start.date(), within.end.date() + dt.timedelta(days=not whole)
