"""What the broker's own summaries say about the demo, read through the API, and whether it agrees with the verdict."""

import datetime as dt
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broker_project.stack.demo.events import KINDS, SUBSCRIBERS
from broker_project.stack.demo.verdict import Verdict
from broker_project.stack.load.management_client import Management

LOOK_SECONDS: Final = 0.5
MAX_WAITING_SECONDS: Final = 300.0
"""How long to wait for a worker that starts the run; a run that has started ends by its own limits."""


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of the hours in which the demo ran."""

    error: str = ""
    """Why there are no figures."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Deliveries by final status."""
    messages: int = 0
    audited: int = 0
    """Deliveries of topics that the ordering audit checked."""
    unexplained: int = 0
    """Those of them out of order or repeated without a reason."""

    def __str__(self) -> str:
        """Return the figures in one line."""
        statuses = ", ".join(f"{count:,} {status}" for status, count in sorted(self.statuses.items()))
        audit = f"ordering audit: {self.audited:,} checked, {self.unexplained} unexplained"
        return f"{self.messages:,} events; deliveries: {statuses}; {audit}"

    def contradictions(self, verdict: Verdict) -> Iterator[str]:
        """Yield where the summary differs from what publishers and receivers recorded."""
        for name, found, logged in (
            ("published", self.messages, verdict.published),
            ("delivered", self.statuses.get("DELIVERED", 0), verdict.total("delivered")),
            ("rejected", self.statuses.get("REJECTED", 0), verdict.total("rejected")),
        ):
            if found != logged:
                yield f"the summary says {name} {found}, the logs say {logged}"
        if self.unexplained:
            yield f"the ordering audit found {self.unexplained} deliveries out of order or repeated without a reason"


def summarize(api: Management, since: dt.datetime) -> Summary:
    """Have the broker summarize what happened since an instant; return the demo's part."""
    began = time.monotonic()
    run = api.create("summary-runs", **{"from": since.isoformat(), "to": dt.datetime.now(dt.UTC).isoformat()})
    while run["state"] == "RUNNING" or (run["state"] == "WAITING" and time.monotonic() - began < MAX_WAITING_SECONDS):
        time.sleep(LOOK_SECONDS)
        run = api.get(f"summary-runs/{run['id']}")
    if run["state"] != "PASSED":
        return Summary(f"run {run['id']} is {run['state']} {run['error']}".rstrip())
    return figures_of(api, run)


def figures_of(api: Management, run: Mapping[str, Any]) -> Summary:
    """Return what a run found about the demo's event types and subscribers."""
    bounds = {"from": min(window["start"] for window in run["windows"]), "to": run["end"]}

    def rows(name: str, column: str, names: Sequence[str]) -> list[dict[str, Any]]:
        wanted = {each + api.suffix for each in names}
        return [row for row in api.every(f"summaries/{name}", **bounds) if row[column] in wanted]

    statuses = Counter[str]()
    for row in rows("reliability", "event_type", [*KINDS]):
        statuses.update(row["by_status"])
    audit = rows("audit", "subscriber", [sample.name for sample in SUBSCRIBERS])
    explained = sum(row["explained_inversions"] + row["explained_duplicates"] for row in audit)
    return Summary(
        statuses=dict(statuses),
        messages=sum(row["messages"] for row in rows("volume", "event_type", [*KINDS])),
        audited=sum(row["checked"] for row in audit),
        unexplained=sum(row["inversions"] + row["duplicates"] for row in audit) - explained,
    )
