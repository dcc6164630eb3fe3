"""The sections of the summaries page: charts and tables, in their order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.conf import settings
from django.db.models import Case, Sum, When
from django.db.models.functions import Abs
from django.utils.safestring import SafeString

from analytics import dashboard_queries
from analytics.admin import charts
from analytics.admin.charts import Chart
from analytics.dashboard_queries import Quantiles, Selection, sums
from analytics.pipeline.tables import ANOMALIES, BUDGETS, CALLBACKS_SUMMARY, FINDINGS, SENDERS
from broker_project.core.admin.theme import copyable, label, table
from delivery.admin.read_only import exact, link_to
from delivery.statuses import NEUTRAL, DeliveryStatus

NO_FAILURES: Final = (DeliveryStatus.DELIVERED, *NEUTRAL)
MAX_MILLISECONDS: Final = 10_000.0
"""Longer times are shown in seconds."""
NOTHING_ENDED: Final = "No delivery ended."


@dataclass(frozen=True, slots=True)
class Section:
    """One topic: a chart or a table."""

    name: str
    """The summary that its links download."""
    title: str
    chart: Chart | None = None
    table: SafeString | str = ""
    nothing: str = ""
    """The text without a chart or a table."""
    note: str = ""


def per_cent(part: int, whole: int) -> str:
    """Return a share in words, rounded down, so that only the whole is 100 %; a dash without a whole."""
    return f"{part * 10_000 // whole / 100:.2f} %" if whole else "-"


def duration(milliseconds: float) -> str:
    """Return a time as pages show it."""
    return f"{milliseconds:,.0f} ms" if milliseconds < MAX_MILLISECONDS else f"{milliseconds / 1000:,.0f} s"


def table_of(rows: Sequence[Mapping[str, object]]) -> SafeString | str:
    """Return a table of rows with the same headers; empty without rows."""
    return table([*rows[0]], [[*row.values()] for row in rows]) if rows else ""


def reliability(chosen: Selection) -> Section:
    """Return the final statuses of deliveries over time."""
    series = charts.in_order(chosen.outcomes, DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries by final status", chosen.range, series)
    return Section("reliability", "Reliability", chart if series else None, nothing=NOTHING_ENDED)


def failures(chosen: Selection) -> Section:
    """Return the same without successes, which would hide the failures."""
    found = {(at, status): number for (at, status), number in chosen.outcomes.items() if status not in NO_FAILURES}
    series = charts.in_order(found, DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries that failed", chosen.range, series)
    nothing = "None failed." if chosen.outcomes else NOTHING_ENDED
    note = "Without redundant and cancelled deliveries."
    return Section("reliability", "Not delivered", chart if series else None, nothing=nothing, note=note)


def delivery_latency(chosen: Selection) -> Section:
    """Return how long deliveries took over time."""
    found = {at: Quantiles.of(histogram) for at, histogram in chosen.histograms.items()}
    series = {name: {at: getattr(took, name) for at, took in found.items()} for name in Quantiles._fields}
    title = "From published to delivered, in milliseconds"
    chart = charts.lines(title, chosen.range, series, logarithmic_unit="ms") if found else None
    note = "From published to delivered, without mailboxes; quantiles within 1 %."
    return Section("latency", "Latency", chart, nothing="Nothing was sent and delivered.", note=note)


def backlog(chosen: Selection) -> Section:
    """Return how many deliveries waited over time."""
    found = {one.step: float(one.backlog) for one in chosen.query(dashboard_queries.HIGHEST_BACKLOG)}
    series = {"unfinished": {at: found.get(at, 0.0) for at in chosen.range.steps()}}
    chart = charts.lines("Highest number of unfinished deliveries", chosen.range, series) if found else None
    note = "The highest number of unfinished deliveries."
    return Section("backlog", "Backlog", chart, nothing="Nothing waited.", note=note)


def volume(chosen: Selection) -> Section:
    """Return what was published over time."""

    def named(publisher: str | None) -> str:
        return charts.OTHERS if publisher is None else publisher or "(management keys)"

    published = chosen.query(dashboard_queries.MESSAGES_BY_PUBLISHER)
    found = {(one.step, named(one.publisher)): one.messages for one in published}
    chart = charts.stacked_bars("Messages by publisher", chosen.range, charts.greatest_first(found)) if found else None
    note = "Messages by publisher, for all subscribers."
    return Section("volume", "Volume", chart, nothing="Nothing was published.", note=note)


def queue_balance(chosen: Selection) -> Section:
    """Return how the senders share the QUEUE messages, also those that took none."""
    by_sender = chosen.rows(SENDERS).order_by("sender").values_list("sender").annotate(Sum("messages"))
    messages = dict.fromkeys(range(settings.QUEUE_SENDERS), 0) | {sender: int(number) for sender, number in by_sender}
    total = sum(messages.values())
    even = total and max(messages.values()) * len(messages) / total
    chart = charts.single_bars("Messages", {f"queue.{sender}": number for sender, number in messages.items()})
    note = f"The busiest sender has {even:.2f} times the mean." if even else ""
    nothing = "No QUEUE message was taken."
    return Section("senders", "Queue balance", chart if even else None, nothing=nothing, note=note)


def callback_replies(chosen: Selection) -> Section:
    """Return how many callbacks were requested and answered."""
    asked, answered, forwarded = sums(chosen.rows(CALLBACKS_SUMMARY), "asked", "answered", "forwarded")
    row = {"requested": f"{asked:,}", "answered": f"{answered:,}", "replies delivered": f"{forwarded:,}"}
    rows = [row] if asked or answered else []
    return Section("callbacks", "Callbacks", table=table_of(rows), nothing="No callback was requested.")


def endpoint_shares(chosen: Selection) -> Section:
    """Return what each endpoint took of its QUEUE group."""
    rows = [
        {
            "event type": f"{one.event_type} (group of {one.group_of})",
            "subscriber": _subscriber(one),
            "endpoint": copyable(one.endpoint, "endpoint"),
            "taken": f"{one.delivered:,}",
            "share": per_cent(one.delivered, one.of_group),
            "redundant": f"{one.redundant:,}",
        }
        for one in chosen.query(dashboard_queries.SHARES)
    ]
    return Section("shares", "Endpoints of queue groups", table=table_of(rows), nothing="No group was sent to.")


def failing(chosen: Selection) -> Section:
    """Return the endpoints that failed most."""
    rows = [
        {
            "subscriber": _subscriber(one),
            "endpoint": copyable(one.endpoint, "endpoint") if one.endpoint else "-",
            "failed attempts": f"{one.failures:,} of {one.attempts:,}",
            "rate": per_cent(one.failures, one.attempts),
            "most common": one.most_common_failure,
            "retries": f"{one.retries:,}",
            "minutes held": f"{one.held_seconds / 60:,.1f}",
        }
        for one in chosen.query(dashboard_queries.FAILING_ENDPOINTS)
    ]
    return Section("endpoints", "Top failing endpoints", table=table_of(rows), nothing="No attempt failed.")


def _subscriber(one: Any) -> SafeString | str:
    if one.subscription_id is None:
        return "(replies to callbacks)"
    if not one.subscriber:
        return dashboard_queries.DELETED
    return link_to("subscriptions_subscription", one.subscription_id, one.subscriber)


def ordering_audit(chosen: Selection) -> Section:
    """Return the findings of the ordering audit."""
    found = chosen.audit
    explained_last = Case(When(explanation="", then=0), default=1)
    rows = [
        {
            "at": exact(one.at),
            "subscriber": one.subscriber,
            "finding": one.finding,
            "delivery": link_to("delivery_delivery", one.delivery_id),
            "other delivery": link_to("delivery_delivery", one.other_id),
            "explanation": one.explanation or label("unexplained", "danger"),
        }
        for one in chosen.rows(FINDINGS).order_by(explained_last, "-at", "id")[:50]
    ]
    note = (
        f"{found.checked:,} deliveries checked: {found.inversions:,} inversions, {found.explained_inversions:,}"
        f" explained; {found.duplicates:,} duplicates, {found.explained_duplicates:,} explained."
    )
    return Section("findings", "Ordering audit", table=table_of(rows), nothing="Nothing to report.", note=note)


def anomalies(chosen: Selection) -> Section:
    """Return unusual hours."""
    rows = [
        {
            "hour": exact(one.hour),
            "subscriber": one.subscriber,
            "measure": one.metric,
            "value": f"{one.value:,.4g}",
            "usual": f"{one.median:,.4g}",
            "robust z": f"{one.score:+,.1f}",
        }
        for one in chosen.rows(ANOMALIES).order_by(Abs("score").desc(), "-hour", "id")[:30]
    ]
    note = "Compared with the same hour of the last four weeks."
    return Section("anomalies", "Anomalies", table=table_of(rows), nothing="Nothing unusual.", note=note)


def error_budgets(chosen: Selection) -> Section:
    """Return how much of each subscriber's error budget is spent, the most spent first."""
    latest = chosen.rows(BUDGETS).order_by("subscriber_id", "-day").distinct("subscriber_id")
    rows = [
        {
            "subscriber": one.subscriber,
            "objective": f"{one.objective:.3%}",
            "failed in 28 days": f"{one.bad_28:,} of {one.eligible_28:,}",
            "budget spent": f"{one.spent:,.2f} times",
            "as of": str(one.day),
        }
        for one in sorted(latest, key=lambda one: (-one.spent, one.subscriber))[:20]
    ]
    return Section("budgets", "Error budgets", table=table_of(rows), nothing="No delivery ended.")


SECTIONS: Final[tuple[Callable[[Selection], Section], ...]] = (
    *(reliability, failures, delivery_latency),
    *(backlog, volume, queue_balance),
    *(callback_replies, endpoint_shares, failing),
    *(ordering_audit, anomalies, error_budgets),
)
