"""What one wants to know first: a few numbers above the charts."""

from dataclasses import dataclass
from typing import Final

from django.template.defaultfilters import filesizeformat

from analytics.admin.section import per_cent
from analytics.figures.cached import Looked
from analytics.figures.ordering import Audit
from analytics.figures.reliability import totals
from analytics.figures.traffic import latency
from analytics.figures.volume import messages_and_bytes

IN_SECONDS: Final = 10_000.0
"""From so many milliseconds on a time reads better in seconds."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One number."""

    title: str
    value: str
    note: str = ""


def headline(looked: Looked) -> list[Figure]:
    """Return what one wants to know first."""
    sums, took, checked = totals(looked.selection), latency(looked.histograms), looked.audit
    published, size = messages_and_bytes(looked.selection)
    return [
        Figure("Published", f"{published:,}", f"{filesizeformat(size)}, whoever receives it"),
        Figure("Deliveries ended", f"{sums.deliveries:,}", f"{sums.delivered:,} delivered"),
        Figure("Success rate", per_cent(sums.success_rate), f"at once: {per_cent(sums.first_attempt_rate)}"),
        Figure("Published to delivered", _ms(took.p50) if took else "-", f"p50; p95 {_ms(took.p95)}" if took else ""),
        Figure("Order", _verdict(checked), f"{checked.checked:,} deliveries checked"),
    ]


def _ms(milliseconds: float) -> str:
    return f"{milliseconds:,.0f} ms" if milliseconds < IN_SECONDS else f"{milliseconds / 1000:,.0f} s"


def _verdict(checked: Audit) -> str:
    if not checked.checked:
        return "-"
    return f"{checked.unexplained:,} unexplained" if checked.unexplained else "kept"
