"""What the page of summaries shows of each topic: a chart or a table, and what to say where there is nothing."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from django.template.defaultfilters import filesizeformat
from django.utils.safestring import SafeString

from analytics.admin import charts
from analytics.admin.charts import Chart
from analytics.figures.anomalies import farthest
from analytics.figures.audit import Audit, audit, findings
from analytics.figures.backlog import highest_backlog
from analytics.figures.budgets import budgets
from analytics.figures.callbacks import callbacks
from analytics.figures.endpoints import failing_endpoints
from analytics.figures.latency import latencies, latency
from analytics.figures.queues import balance, messages_by_sender, shares
from analytics.figures.reliability import outcomes, totals
from analytics.figures.selecting import Selection
from analytics.figures.volume import messages_and_bytes, messages_by_publisher
from delivery.admin.read_only import instant, link_to
from delivery.rules.statuses import DeliveryStatus
from subscriptions.admin.theme import label, table

PUBLISHERS_DRAWN: Final = 6
BY_MANAGEMENT: Final = "(management keys)"
REPLIES: Final = "(replies to callbacks)"


@dataclass(frozen=True, slots=True)
class Section:
    """One topic."""

    name: str
    """Of the summary, by which it is downloaded."""
    title: str
    note: str = ""
    chart: Chart | None = None
    table: SafeString | str = ""
    nothing: str = ""
    """What is said where there is neither."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number above the charts."""

    title: str
    value: str
    note: str = ""


def headline(selection: Selection) -> list[Figure]:
    """Return what one wants to know first."""
    sums, took, checked = totals(selection), latency(selection), audit(selection)
    published, size = messages_and_bytes(selection)
    return [
        Figure("Published", f"{published:,}", filesizeformat(size)),
        Figure("Deliveries ended", f"{sums.deliveries:,}", f"{sums.delivered:,} delivered"),
        Figure("Success rate", per_cent(sums.success_rate), f"at once: {per_cent(sums.first_attempt_rate)}"),
        Figure("Published to delivered", f"{_ms(took.p50)} / {_ms(took.p95)}" if took else "-", "p50 / p95"),
        Figure("Order", _verdict(checked), f"{checked.checked:,} deliveries checked"),
    ]


def reliability(selection: Selection) -> Section:
    """Return how deliveries ended, step by step."""
    series = charts.in_order(outcomes(selection), DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries by the status they ended in", selection.range, series)
    return Section("reliability", "Reliability", "", chart if series else None, nothing="No delivery ended.")


def failures(selection: Selection) -> Section:
    """Return the same without those that were delivered, which would hide them."""
    found = {key: number for key, number in outcomes(selection).items() if key[1] != DeliveryStatus.DELIVERED}
    series = charts.in_order(found, DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries that ended otherwise than delivered", selection.range, series)
    note = "Deliveries that ended otherwise than delivered."
    return Section("reliability", "Not delivered", note, chart if series else None, nothing="All were delivered.")


def how_long(selection: Selection) -> Section:
    """Return how long deliveries took, step by step."""
    found = latencies(selection)
    series = {name: {at: getattr(took, name) for at, took in found.items()} for name in ("p50", "p95", "p99")}
    chart = charts.lines("From published to delivered, in milliseconds", selection.range, series, unit="ms")
    note = "From published to delivered; quantiles within 1 %."
    return Section("latency", "Latency", note, chart if found else None, nothing="Nothing was delivered.")


def volume(selection: Selection) -> Section:
    """Return what was published, step by step."""
    found = {(at, name or BY_MANAGEMENT): number for (at, name), number in messages_by_publisher(selection).items()}
    series = charts.most(found, PUBLISHERS_DRAWN)
    chart = charts.stacked_bars("Messages by publisher", selection.range, series)
    note = "Messages by publisher, whoever receives them."
    return Section("volume", "Volume", note, chart if found else None, nothing="Nothing was published.")


def backlog(selection: Selection) -> Section:
    """Return how much waited, step by step."""
    found = highest_backlog(selection)
    series = {"unfinished": {at: float(found.get(at, 0)) for at in selection.range.steps()}}
    chart = charts.lines("The most deliveries unfinished at one moment", selection.range, series)
    note = "The most deliveries that were unfinished at one moment."
    return Section("backlog", "Backlog", note, chart if found else None, nothing="Nothing waited.")


def queue_balance(selection: Selection) -> Section:
    """Return how the senders share the QUEUE messages."""
    messages = messages_by_sender(selection)
    even = balance(messages)
    chart = charts.single_bars("Messages", {f"queue.{sender}": number for sender, number in messages.items()})
    note = f"The busiest sender has {even:.2f} times the mean." if even else ""
    return Section("senders", "Queue balance", note, chart if even else None, nothing="No QUEUE message was taken.")


def endpoint_shares(selection: Selection) -> Section:
    """Return what each endpoint took of its QUEUE group."""
    rows = [
        [
            f"{one.event_type} (group of {one.group_of})",
            link_to("subscriptions_subscription", one.subscription_id, f"{one.subscriber}: {one.endpoint}"),
            f"{one.delivered:,}",
            per_cent(one.delivered / one.delivered_of_group if one.delivered_of_group else None),
            f"{one.redundant:,}",
        ]
        for one in shares(selection)
    ]
    headers = ["event type", "endpoint", "taken", "share", "redundant"]
    return Section("shares", "Endpoints of queue groups", table=_table(headers, rows), nothing="No group was tried.")


def failing(selection: Selection) -> Section:
    """Return the endpoints that failed most."""
    rows = [
        [
            link_to("subscriptions_subscription", one.subscription_id, one.subscriber) if one.subscriber else REPLIES,
            one.endpoint or "-",
            f"{one.failures:,} of {one.attempts:,}",
            per_cent(one.failure_rate),
            one.commonest,
            f"{one.retries:,}",
            f"{one.held_seconds / 60:,.1f}",
        ]
        for one in failing_endpoints(selection)
    ]
    headers = ["subscriber", "endpoint", "failed attempts", "rate", "mostly", "retries", "minutes held"]
    return Section("endpoints", "Top failing endpoints", table=_table(headers, rows), nothing="No attempt failed.")


def ordering_audit(selection: Selection) -> Section:
    """Return what the ordering audit found."""
    sums = audit(selection)
    rows = [
        [
            instant(one.at),
            one.subscriber,
            one.finding,
            link_to("delivery_delivery", one.delivery_id, one.delivery_id),
            link_to("delivery_delivery", one.other_id, one.other_id),
            one.explanation or label("unexplained", "danger"),
        ]
        for one in findings(selection)
    ]
    headers = ["at", "subscriber", "finding", "delivery", "the other", "explanation"]
    note = (
        f"{sums.checked:,} deliveries checked: {sums.inversions:,} inversions, {sums.explained_inversions:,} explained;"
        f" {sums.duplicates:,} duplicates, {sums.explained_duplicates:,} explained."
    )
    return Section("findings", "Ordering audit", note, table=_table(headers, rows), nothing="Nothing to report.")


def anomalies(selection: Selection) -> Section:
    """Return the hours that were unlike others."""
    rows = [
        [instant(one.hour), one.subscriber, one.metric, f"{one.value:,.4g}", f"{one.median:,.4g}", f"{one.score:+,.1f}"]
        for one in farthest(selection)
    ]
    headers = ["hour", "subscriber", "measure", "value", "usually", "robust z"]
    note = "Against the same hour of the last four weeks."
    return Section("anomalies", "Anomalies", note, table=_table(headers, rows), nothing="Nothing unusual.")


def error_budgets(selection: Selection) -> Section:
    """Return how much may still fail."""
    rows = [
        [one.subscriber, f"{one.objective:.3%}", f"{one.bad:,} of {one.eligible:,}", per_cent(one.spent), str(one.day)]
        for one in budgets(selection)
    ]
    headers = ["subscriber", "objective", "failed in 28 days", "budget spent", "as of"]
    return Section("budgets", "Error budgets", table=_table(headers, rows), nothing="No delivery ended.")


def callback_replies(selection: Selection) -> Section:
    """Return what became of callbacks."""
    sums = callbacks(selection)
    rows = [[f"{sums.asked:,}", f"{sums.answered:,}", f"{sums.forwarded:,}"]] if sums.asked or sums.answered else []
    headers = ["asked for", "answered", "replies delivered"]
    return Section("callbacks", "Callbacks", table=_table(headers, rows), nothing="No callback was asked for.")


SECTIONS: Final[tuple[Callable[[Selection], Section], ...]] = (
    *(reliability, failures, how_long, backlog, volume, queue_balance, callback_replies),
    *(endpoint_shares, failing, ordering_audit, anomalies, error_budgets),
)


def per_cent(share: float | None) -> str:
    """Return a share in words, exact near the whole; a dash for None."""
    return "-" if share is None else f"{share:.2%}"


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:,.0f} s"  # noqa: PLR2004 - readable


def _verdict(checked: Audit) -> str:
    if not checked.checked:
        return "-"
    return f"{checked.unexplained:,} unexplained" if checked.unexplained else "kept"


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> SafeString | str:
    return table(headers, rows) if rows else ""
