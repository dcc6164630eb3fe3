"""The sections of the summaries page: charts and tables, in their order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from django.utils.safestring import SafeString

from analytics.admin import charts
from analytics.admin.charts import Chart
from analytics.dashboard_queries import (
    ANOMALIES,
    BUDGETS,
    CALLBACKS,
    FAILING_ENDPOINTS,
    FINDINGS,
    HIGHEST_BACKLOG,
    MESSAGES_BY_PUBLISHER,
    MESSAGES_BY_SENDER,
    SHARES,
    DashboardData,
    Quantiles,
    balance,
)
from analytics.vocabulary import NEUTRAL
from broker_project.core.admin.theme import label, table
from delivery.admin.read_only import instant, link_to
from delivery.statuses import DeliveryStatus

NO_FAILURES: Final = (DeliveryStatus.DELIVERED, *NEUTRAL)
NOTHING_ENDED: Final = "No delivery ended."
BY_MANAGEMENT: Final = "(management keys)"

REPLIES: Final = "(replies to callbacks)"


@dataclass(frozen=True, slots=True)
class Section:
    """One topic: a chart or a table."""

    name: str
    """The summary that its links download."""
    title: str
    note: str = ""
    chart: Chart | None = None
    table: SafeString | str = ""
    nothing: str = ""
    """The text without a chart or a table."""


def per_cent(share: float | None) -> str:
    """Return a share in words, exact near the whole; a dash for None."""
    return "-" if share is None else f"{share:.2%}"


def reliability(data: DashboardData) -> Section:
    """Return the final statuses of deliveries over time."""
    series = charts.in_order(data.outcomes, DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries by final status", data.selection.range, series)
    return Section("reliability", "Reliability", "", chart if series else None, nothing=NOTHING_ENDED)


def failures(data: DashboardData) -> Section:
    """Return the same without successes, which would hide the failures."""
    found = {(at, status): number for (at, status), number in data.outcomes.items() if status not in NO_FAILURES}
    series = charts.in_order(found, DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries that failed", data.selection.range, series)
    note = "Without redundant and cancelled deliveries."
    nothing = "None failed." if data.outcomes else NOTHING_ENDED
    return Section("reliability", "Not delivered", note, chart if series else None, nothing=nothing)


def delivery_latency(data: DashboardData) -> Section:
    """Return how long deliveries took over time."""
    found = {at: Quantiles.of(histogram) for at, histogram in data.histograms.items()}
    series = {name: {at: getattr(took, name) for at, took in found.items()} for name in ("p50", "p95", "p99")}
    chart = charts.lines(
        "From published to delivered, in milliseconds", data.selection.range, series, unit="ms", logarithmic=True
    )
    note = "From published to delivered, without mailboxes; quantiles within 1 %."
    return Section("latency", "Latency", note, chart if found else None, nothing="Nothing was sent and delivered.")


def backlog(data: DashboardData) -> Section:
    """Return how many deliveries waited over time."""
    found = dict(HIGHEST_BACKLOG.all(data.selection))
    series = {"unfinished": {at: float(found.get(at, 0)) for at in data.selection.range.steps()}}
    chart = charts.lines("Highest number of unfinished deliveries", data.selection.range, series)
    note = "The highest number of unfinished deliveries."
    return Section("backlog", "Backlog", note, chart if found else None, nothing="Nothing waited.")


def volume(data: DashboardData) -> Section:
    """Return what was published over time."""
    found = MESSAGES_BY_PUBLISHER.all(data.selection)
    series = charts.greatest_first({(at, _publisher(name)): number for at, name, number in found})
    chart = charts.stacked_bars("Messages by publisher", data.selection.range, series)
    note = "Messages by publisher, for all subscribers."
    return Section("volume", "Volume", note, chart if found else None, nothing="Nothing was published.")


def queue_balance(data: DashboardData) -> Section:
    """Return how the senders share the QUEUE messages."""
    messages = dict(MESSAGES_BY_SENDER.all(data.selection))
    even = balance(messages)
    chart = charts.single_bars("Messages", {f"queue.{sender}": number for sender, number in messages.items()})
    note = f"The busiest sender has {even:.2f} times the mean." if even else ""
    return Section("senders", "Queue balance", note, chart if even else None, nothing="No QUEUE message was taken.")


def _publisher(name: str | None) -> str:
    return charts.OTHERS if name is None else name or BY_MANAGEMENT


def callback_replies(data: DashboardData) -> Section:
    """Return how many callbacks were requested and answered."""
    sums = CALLBACKS.one(data.selection)
    rows = [[f"{sums.asked:,}", f"{sums.answered:,}", f"{sums.forwarded:,}"]] if sums.asked or sums.answered else []
    headers = ["requested", "answered", "replies delivered"]
    return Section("callbacks", "Callbacks", table=_table(headers, rows), nothing="No callback was requested.")


def endpoint_shares(data: DashboardData) -> Section:
    """Return what each endpoint took of its QUEUE group."""
    rows = [
        [
            f"{one.event_type} (group of {one.group_of})",
            link_to("subscriptions_subscription", one.subscription_id, f"{one.subscriber}: {one.endpoint}"),
            f"{one.delivered:,}",
            per_cent(one.delivered / one.delivered_of_group if one.delivered_of_group else None),
            f"{one.redundant:,}",
        ]
        for one in SHARES.all(data.selection)
    ]
    headers = ["event type", "endpoint", "taken", "share", "redundant"]
    return Section("shares", "Endpoints of queue groups", table=_table(headers, rows), nothing="No group was sent to.")


def failing(data: DashboardData) -> Section:
    """Return the endpoints that failed most."""
    rows = [
        [
            link_to("subscriptions_subscription", one.subscription_id, one.subscriber) if one.subscriber else REPLIES,
            one.endpoint or "-",
            f"{one.failures:,} of {one.attempts:,}",
            per_cent(one.failure_rate),
            one.most_common_failure,
            f"{one.retries:,}",
            f"{one.held_seconds / 60:,.1f}",
        ]
        for one in FAILING_ENDPOINTS.all(data.selection)
    ]
    headers = ["subscriber", "endpoint", "failed attempts", "rate", "most common", "retries", "minutes held"]
    return Section("endpoints", "Top failing endpoints", table=_table(headers, rows), nothing="No attempt failed.")


def ordering_audit(data: DashboardData) -> Section:
    """Return the findings of the ordering audit."""
    sums = data.audit
    rows = [
        [
            instant(one.at),
            one.subscriber,
            one.finding,
            link_to("delivery_delivery", one.delivery_id, one.delivery_id),
            link_to("delivery_delivery", one.other_id, one.other_id),
            one.explanation or label("unexplained", "danger"),
        ]
        for one in FINDINGS.all(data.selection)
    ]
    headers = ["at", "subscriber", "finding", "delivery", "other delivery", "explanation"]
    note = (
        f"{sums.checked:,} deliveries checked: {sums.inversions:,} inversions, {sums.explained_inversions:,} explained;"
        f" {sums.duplicates:,} duplicates, {sums.explained_duplicates:,} explained."
    )
    return Section("findings", "Ordering audit", note, table=_table(headers, rows), nothing="Nothing to report.")


def anomalies(data: DashboardData) -> Section:
    """Return unusual hours."""
    rows = [
        [instant(one.hour), one.subscriber, one.metric, f"{one.value:,.4g}", f"{one.median:,.4g}", f"{one.score:+,.1f}"]
        for one in ANOMALIES.all(data.selection)
    ]
    headers = ["hour", "subscriber", "measure", "value", "usual", "robust z"]
    note = "Compared with the same hour of the last four weeks."
    return Section("anomalies", "Anomalies", note, table=_table(headers, rows), nothing="Nothing unusual.")


def error_budgets(data: DashboardData) -> Section:
    """Return how much of each error budget is spent."""
    rows = [
        [
            one.subscriber,
            f"{one.objective:.3%}",
            f"{one.bad:,} of {one.eligible:,}",
            f"{one.spent:,.2f} times",
            str(one.day),
        ]
        for one in BUDGETS.all(data.selection)
    ]
    headers = ["subscriber", "objective", "failed in 28 days", "budget spent", "as of"]
    return Section("budgets", "Error budgets", table=_table(headers, rows), nothing="No delivery ended.")


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> SafeString | str:
    return table(headers, rows) if rows else ""


SECTIONS: Final[tuple[Callable[[DashboardData], Section], ...]] = (
    *(reliability, failures, delivery_latency),
    *(backlog, volume, queue_balance),
    *(callback_replies, endpoint_shares, failing),
    *(ordering_audit, anomalies, error_budgets),
)
