"""What the broker's own summaries say about the demo, read through the API, and whether it agrees with the verdict."""

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from analytics.pipeline.quantiles import merged, quantile
from broker_project.stack.demo.events import KINDS, SUBSCRIBERS
from broker_project.stack.demo.verdict import Verdict
from broker_project.stack.load.management_client import Management

LOOK_SECONDS: Final = 0.5
REPORT_SECONDS: Final = 10.0
"""Time between two lines that say how far the run is."""
MAX_WAITING_SECONDS: Final = 300.0
"""How long to wait for a worker that starts the run; a run that has started ends by its own limits."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of the hours in which the demo ran."""

    seconds: float
    """From the request to the result, including the start of Spark."""
    error: str = ""
    """Why there are no figures."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Deliveries by final status."""
    delivered: int = 0
    eligible: int = 0
    """Deliveries whose result depended on the endpoint."""
    p50_ms: float = 0.0
    p95_ms: float = 0.0
    """From publishing to delivery."""
    messages: int = 0
    bytes: int = 0
    senders: Sequence[int] = ()
    """Messages that each QUEUE sender delivered."""
    audited: int = 0
    """Deliveries of topics that the ordering audit checked."""
    unexplained: int = 0
    """Those of them out of order or repeated without a reason."""


def summarize(api: Management, since: dt.datetime, report: Callable[[str], object]) -> Summary:
    """Have the broker summarize what happened since an instant; return the demo's part."""
    began = time.monotonic()
    bounds = {"from": since.isoformat(), "to": dt.datetime.now(dt.UTC).isoformat()}
    run = api.create("summary-runs", **bounds)
    reported = began
    while run["state"] == "RUNNING" or (run["state"] == "WAITING" and time.monotonic() - began < MAX_WAITING_SECONDS):
        time.sleep(LOOK_SECONDS)
        run = api.get(f"summary-runs/{run['id']}")
        if time.monotonic() - reported > REPORT_SECONDS:
            reported = time.monotonic()
            report(f"  {run['state']}, {len(run['windows'])} hours done ({reported - began:.0f} s)")
    if run["state"] != "PASSED":
        return Summary(0.0, f"run {run['id']} is {run['state']} {run['error']}".rstrip())
    return figures_of(api, run, time.monotonic() - began)


def figures_of(api: Management, run: Mapping[str, Any], seconds: float) -> Summary:
    """Return what a run found about the demo's event types and subscribers."""
    bounds = {"from": min(window["start"] for window in run["windows"]), "to": run["end"]}

    def rows(name: str, column: str = "", names: Sequence[str] = ()) -> list[dict[str, Any]]:
        wanted = {each + api.suffix for each in names}
        return [row for row in api.every(f"summaries/{name}", **bounds) if not column or row[column] in wanted]

    reliability, volume = rows("reliability", "event_type", [*KINDS]), rows("volume", "event_type", [*KINDS])
    latency = [row for row in rows("latency", "event_type", [*KINDS]) if row["measure"] == "delivery"]
    audit = rows("audit", "subscriber", [sample.name for sample in SUBSCRIBERS])
    statuses, senders = Counter[str](), Counter[int]()
    for row in reliability:
        statuses.update(row["by_status"])
    for row in rows("senders"):
        senders[row["sender"]] += row["messages"]
    times = merged({int(bucket): count for bucket, count in row["histogram"].items()} for row in latency)
    explained = sum(row["explained_inversions"] + row["explained_duplicates"] for row in audit)
    return Summary(
        seconds=seconds,
        statuses=dict(statuses),
        delivered=sum(row["delivered"] for row in reliability),
        eligible=sum(row["eligible"] for row in reliability),
        p50_ms=quantile(times, 0.5) if times else 0.0,
        p95_ms=quantile(times, 0.95) if times else 0.0,
        messages=sum(row["messages"] for row in volume),
        bytes=sum(row["bytes"] for row in volume),
        senders=[count for _, count in sorted(senders.items())],
        audited=sum(row["checked"] for row in audit),
        unexplained=sum(row["inversions"] + row["duplicates"] for row in audit) - explained,
    )


def contradictions(summary: Summary, verdict: Verdict) -> Iterator[str]:
    """Yield where the summary differs from what publishers and receivers recorded."""
    found = {
        "published": summary.messages,
        "delivered": summary.statuses.get("DELIVERED", 0),
        "rejected": summary.statuses.get("REJECTED", 0),
    }
    for name, count in found.items():
        if count != verdict.counts[name]:
            yield f"the summary says {name} {count}, the logs say {verdict.counts[name]}"
    if summary.unexplained:
        yield f"the ordering audit found {summary.unexplained} deliveries out of order or repeated without a reason"
