"""The topics that are listed."""

from collections.abc import Sequence
from typing import Final

from django.utils.safestring import SafeString

from analytics.admin.section import Section, per_cent
from analytics.figures.anomalies import farthest
from analytics.figures.budgets import budgets
from analytics.figures.cached import Looked
from analytics.figures.callbacks import callbacks
from analytics.figures.ordering import findings
from analytics.figures.queues import shares
from analytics.figures.success import failing_endpoints
from broker_project.core.admin.read_only import instant, link_to
from broker_project.core.admin.theme import label, table

REPLIES: Final = "(replies to callbacks)"


def callback_replies(looked: Looked) -> Section:
    """Return what became of callbacks."""
    sums = callbacks(looked.selection)
    rows = [[f"{sums.asked:,}", f"{sums.answered:,}", f"{sums.forwarded:,}"]] if sums.asked or sums.answered else []
    headers = ["asked for", "answered", "replies delivered"]
    return Section("callbacks", "Callbacks", table=_table(headers, rows), nothing="No callback was asked for.")


def endpoint_shares(looked: Looked) -> Section:
    """Return what each endpoint took of its QUEUE group."""
    rows = [
        [
            f"{one.event_type} (group of {one.group_of})",
            link_to("subscriptions_subscription", one.subscription_id, f"{one.subscriber}: {one.endpoint}"),
            f"{one.delivered:,}",
            per_cent(one.delivered / one.delivered_of_group if one.delivered_of_group else None),
            f"{one.redundant:,}",
        ]
        for one in shares(looked.selection)
    ]
    headers = ["event type", "endpoint", "taken", "share", "redundant"]
    return Section("shares", "Endpoints of queue groups", table=_table(headers, rows), nothing="No group was tried.")


def failing(looked: Looked) -> Section:
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
        for one in failing_endpoints(looked.selection)
    ]
    headers = ["subscriber", "endpoint", "failed attempts", "rate", "mostly", "retries", "minutes held"]
    return Section("endpoints", "Top failing endpoints", table=_table(headers, rows), nothing="No attempt failed.")


def ordering_audit(looked: Looked) -> Section:
    """Return what the ordering audit found."""
    sums = looked.audit
    rows = [
        [
            instant(one.at),
            one.subscriber,
            one.finding,
            link_to("delivery_delivery", one.delivery_id, one.delivery_id),
            link_to("delivery_delivery", one.other_id, one.other_id),
            one.explanation or label("unexplained", "danger"),
        ]
        for one in findings(looked.selection)
    ]
    headers = ["at", "subscriber", "finding", "delivery", "the other", "explanation"]
    note = (
        f"{sums.checked:,} deliveries checked: {sums.inversions:,} inversions, {sums.explained_inversions:,} explained;"
        f" {sums.duplicates:,} duplicates, {sums.explained_duplicates:,} explained."
    )
    return Section("findings", "Ordering audit", note, table=_table(headers, rows), nothing="Nothing to report.")


def anomalies(looked: Looked) -> Section:
    """Return the hours that were unlike others."""
    rows = [
        [instant(one.hour), one.subscriber, one.metric, f"{one.value:,.4g}", f"{one.median:,.4g}", f"{one.score:+,.1f}"]
        for one in farthest(looked.selection)
    ]
    headers = ["hour", "subscriber", "measure", "value", "usually", "robust z"]
    note = "Against the same hour of the last four weeks."
    return Section("anomalies", "Anomalies", note, table=_table(headers, rows), nothing="Nothing unusual.")


def error_budgets(looked: Looked) -> Section:
    """Return how much may still fail."""
    rows = [
        [
            one.subscriber,
            f"{one.objective:.3%}",
            f"{one.bad:,} of {one.eligible:,}",
            f"{one.spent:,.2f} times",
            str(one.day),
        ]
        for one in budgets(looked.selection)
    ]
    headers = ["subscriber", "objective", "failed in 28 days", "budget spent", "as of"]
    return Section("budgets", "Error budgets", table=_table(headers, rows), nothing="No delivery ended.")


def _table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> SafeString | str:
    return table(headers, rows) if rows else ""
