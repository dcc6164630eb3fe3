"""The topics that are drawn."""

from typing import Final

from analytics.admin import charts
from analytics.admin.section import Section
from analytics.figures.backlog import highest_backlog
from analytics.figures.cached import Looked
from analytics.figures.queues import balance, messages_by_sender
from analytics.figures.traffic import latencies
from analytics.figures.volume import messages_by_publisher
from analytics.vocabulary import NEUTRAL
from delivery.statuses import DeliveryStatus

NO_FAILURES: Final = (DeliveryStatus.DELIVERED, *NEUTRAL)
NOTHING_ENDED: Final = "No delivery ended."
BY_MANAGEMENT: Final = "(management keys)"


def reliability(looked: Looked) -> Section:
    """Return how deliveries ended, step by step."""
    series = charts.in_order(looked.outcomes, DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries by the status they ended in", looked.selection.range, series)
    return Section("reliability", "Reliability", "", chart if series else None, nothing=NOTHING_ENDED)


def failures(looked: Looked) -> Section:
    """Return the same without those that were delivered, which would hide them."""
    found = {(at, status): number for (at, status), number in looked.outcomes.items() if status not in NO_FAILURES}
    series = charts.in_order(found, DeliveryStatus.values)
    chart = charts.stacked_bars("Deliveries that failed", looked.selection.range, series)
    note = "Without those that somebody else took or somebody cancelled."
    nothing = "None failed." if looked.outcomes else NOTHING_ENDED
    return Section("reliability", "Not delivered", note, chart if series else None, nothing=nothing)


def how_long(looked: Looked) -> Section:
    """Return how long deliveries took, step by step."""
    found = latencies(looked.histograms)
    series = {name: {at: getattr(took, name) for at, took in found.items()} for name in ("p50", "p95", "p99")}
    chart = charts.lines(
        "From published to delivered, in milliseconds", looked.selection.range, series, unit="ms", logarithmic=True
    )
    note = "From published to delivered, of what is sent, not fetched; quantiles within 1 %."
    return Section("latency", "Latency", note, chart if found else None, nothing="Nothing was sent and delivered.")


def backlog(looked: Looked) -> Section:
    """Return how much waited, step by step."""
    found = highest_backlog(looked.selection)
    series = {"unfinished": {at: float(found.get(at, 0)) for at in looked.selection.range.steps()}}
    chart = charts.lines("The most deliveries unfinished at one moment", looked.selection.range, series)
    note = "The most deliveries that were unfinished at one moment."
    return Section("backlog", "Backlog", note, chart if found else None, nothing="Nothing waited.")


def volume(looked: Looked) -> Section:
    """Return what was published, step by step."""
    found = messages_by_publisher(looked.selection)
    series = charts.greatest_first({(at, _publisher(name)): number for (at, name), number in found.items()})
    chart = charts.stacked_bars("Messages by publisher", looked.selection.range, series)
    note = "Messages by publisher, whoever receives them."
    return Section("volume", "Volume", note, chart if found else None, nothing="Nothing was published.")


def queue_balance(looked: Looked) -> Section:
    """Return how the senders share the QUEUE messages."""
    messages = messages_by_sender(looked.selection)
    even = balance(messages)
    chart = charts.single_bars("Messages", {f"queue.{sender}": number for sender, number in messages.items()})
    note = f"The busiest sender has {even:.2f} times the mean." if even else ""
    return Section("senders", "Queue balance", note, chart if even else None, nothing="No QUEUE message was taken.")


def _publisher(name: str | None) -> str:
    return charts.OTHERS if name is None else name or BY_MANAGEMENT
