"""Runs and what they brought: one module a model, re-exported here.

Each summary has the columns of its table in `pipeline.tables`, and is replaced a window at a time; `HourTotal` is
added up of them.
"""

from analytics.models.anomalies import Anomaly
from analytics.models.audit import OrderingAudit
from analytics.models.backlog import Backlog
from analytics.models.budgets import ErrorBudget
from analytics.models.callbacks import CallbackCount
from analytics.models.endpoints import EndpointHealth
from analytics.models.findings import AuditFinding
from analytics.models.reliability import Reliability
from analytics.models.runs import Run, RunKind, RunState, RunWindow, WindowState
from analytics.models.senders import SenderLoad
from analytics.models.shares import EndpointShare
from analytics.models.summaries import Latency
from analytics.models.totals import HourTotal
from analytics.models.volume import Volume

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
