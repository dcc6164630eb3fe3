"""Runs and what they brought: one module a model, re-exported here.

Each summary has the columns of its table in `pipeline.tables`, and is replaced a window at a time; `HourTotal` is
added up of them.
"""

from analytics.models.runs import Run, RunKind, RunState, RunWindow, WindowState
from analytics.models.summaries import (
    Anomaly,
    AuditFinding,
    Backlog,
    CallbackCount,
    EndpointHealth,
    EndpointShare,
    ErrorBudget,
    HourTotal,
    Latency,
    OrderingAudit,
    Reliability,
    SenderLoad,
    Volume,
)

__all__ = [
    "Anomaly",
    "AuditFinding",
    "Backlog",
    "CallbackCount",
    "EndpointHealth",
    "EndpointShare",
    "ErrorBudget",
    "HourTotal",
    "Latency",
    "OrderingAudit",
    "Reliability",
    "Run",
    "RunKind",
    "RunState",
    "RunWindow",
    "SenderLoad",
    "Volume",
    "WindowState",
]
