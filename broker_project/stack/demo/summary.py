"""What Spark read of the demo in the broker's database: the figures, how they look, and whether they are right."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import mean

from rich.box import SIMPLE_HEAD
from rich.table import Table

from broker_project.stack.demo.display import duration
from broker_project.stack.demo.verdict import Whole


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of the hours in which the demo ran."""

    seconds: float
    """From asking for it to having it, the start of Spark included."""

    error: str = ""
    """Why there are none."""

    statuses: Mapping[str, int] = field(default_factory=dict)
    """Deliveries by the status in which they ended."""

    delivered: int = 0
    eligible: int = 0
    """Those whose end says something of the endpoint."""

    p50_ms: float = 0.0
    p95_ms: float = 0.0
    """From publishing to delivery."""

    messages: int = 0
    bytes: int = 0
    senders: tuple[int, ...] = ()
    """Messages that each QUEUE sender has brought to somebody."""

    audited: int = 0
    unexplained: int = 0
    """Deliveries of topics that were looked at, and what was out of order or twice among them."""


def contradictions(summary: Summary, whole: Whole) -> Iterator[str]:
    """Return in which figures the summary is not what publishers and receivers have written down."""
    found = {
        "published": summary.messages,
        "delivered": summary.statuses.get("DELIVERED", 0),
        "rejected": summary.statuses.get("REJECTED", 0),
    }
    for name, count in found.items():
        if count != whole.counts[name]:
            yield f"the summary says {name} {count}, the logs say {whole.counts[name]}"
    if summary.unexplained:
        yield f"the ordering audit found {summary.unexplained} deliveries out of order or twice, and no reason for it"


def table(summary: Summary) -> Table:
    """Return the figures as people read them."""
    title = f"SUMMARY: what Spark read of it in the broker's database, in {summary.seconds:.1f} s"
    shown = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, padding=0, show_header=False)
    shown.add_column("figure", no_wrap=True)
    shown.add_column("value")
    for name, value in _lines(summary):
        shown.add_row(f"{name}   ", value)
    return shown


def _lines(summary: Summary) -> Iterator[tuple[str, str]]:
    yield "deliveries", ", ".join(f"{count:,} {status}" for status, count in sorted(summary.statuses.items()))
    yield "success rate", f"{100 * summary.delivered / max(1, summary.eligible):.1f} % of {summary.eligible:,}"
    yield "publish to delivery", f"p50 {duration(summary.p50_ms / 1000)}, p95 {duration(summary.p95_ms / 1000)}"
    yield "volume", f"{summary.messages:,} events, {summary.bytes / 1_000_000:.1f} MB"
    if summary.senders:
        most = max(summary.senders) / max(1.0, mean(summary.senders))
        jobs = ", ".join(map(str, summary.senders))
        yield "QUEUE senders", f"{jobs} jobs; the busiest has {most:.2f} times the mean"
    yield "ordering audit", f"{summary.audited:,} checked, {summary.unexplained} unexplained"
