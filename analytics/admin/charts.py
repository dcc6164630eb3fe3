"""Figures for Chart.js: each chart has a text alternative, and lines differ by more than their colour."""

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from analytics.windows import Range
from delivery.statuses import DeliveryStatus

GREY: Final = "#9ca3af"
COLOURS: Final = ("#2563eb", "#f59e0b", "#7c3aed", "#0891b2", "#db2777", "#65a30d", "#64748b")
STATUS_COLOURS: Final = {
    "DELIVERED": "#16a34a",
    "REDUNDANT": "#94a3b8",
    "CANCELLED": "#64748b",
    "REJECTED": "#dc2626",
    "3xxNOTSUPPORTED": "#be185d",
    "FAILED": "#7f1d1d",
    "EXPIRED": "#f59e0b",
}
WORDS: Final = dict(DeliveryStatus.choices)
DASHES: Final = ((), (6, 3), (2, 2))
OTHERS: Final = "all others"


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart of a page."""

    kind: str
    """bar or line."""
    data: str
    options: str
    summary: str
    """The text alternative."""


def stacked_bars(title: str, asked: Range, series: Mapping[str, Mapping[dt.datetime, float]]) -> Chart:
    """Return a bar for each step, stacked from the series."""
    drawn = [
        {
            "label": WORDS.get(name, name),
            "data": [values.get(at, 0) for at in asked.steps()],
            "backgroundColor": STATUS_COLOURS.get(name, COLOURS[number % len(COLOURS)]),
        }
        for number, (name, values) in enumerate(series.items())
    ]
    return _chart("bar", title, _labels(asked), drawn)


def lines(
    title: str, asked: Range, series: Mapping[str, Mapping[dt.datetime, float]], *, logarithmic_unit: str = ""
) -> Chart:
    """Return a line for each series, broken where it has no value; the scale is logarithmic if it has a unit."""
    drawn = [
        {
            "label": name,
            "data": [values.get(at) for at in asked.steps()],
            "borderColor": COLOURS[number % len(COLOURS)],
            "backgroundColor": COLOURS[number % len(COLOURS)],
            "borderDash": DASHES[number % len(DASHES)],
            "borderWidth": 2,
            "pointRadius": 2,
        }
        for number, (name, values) in enumerate(series.items())
    ]
    return _chart("line", title, _labels(asked), drawn, logarithmic_unit=logarithmic_unit)


def single_bars(title: str, values: Mapping[str, float]) -> Chart:
    """Return a bar for each name."""
    drawn = [{"label": title, "data": [*values.values()], "backgroundColor": COLOURS[0], "maxBarThickness": 48}]
    return _chart("bar", title, [*values], drawn, legend=False)


def greatest_first(found: Mapping[tuple[dt.datetime, str], int]) -> dict[str, dict[dt.datetime, float]]:
    """Return the series by their sums, greatest first; `OTHERS` comes last."""
    sums = Counter[str]()
    for (_, name), number in found.items():
        sums[name] += number
    return in_order(found, sorted(sums, key=lambda name: (name == OTHERS, -sums[name], name)))


def in_order(found: Mapping[tuple[dt.datetime, str], int], names: Iterable[str]) -> dict[str, dict[dt.datetime, float]]:
    """Return the series in the order of `names`, without empty ones; unknown names come last."""
    series: dict[str, dict[dt.datetime, float]] = {name: {} for name in names}
    for (at, name), number in found.items():
        series.setdefault(name, {})[at] = number
    return {name: values for name, values in series.items() if values}


def _labels(asked: Range) -> list[str]:
    return [at.strftime("%d %b" if asked.step == "day" else "%d %b %H:%M") for at in asked.steps()]


def _chart(
    kind: str,
    title: str,
    labels: list[str],
    drawn: list[dict[str, Any]],
    *,
    legend: bool = True,
    logarithmic_unit: str = "",
) -> Chart:
    ticks = {"color": GREY, "maxRotation": 0}
    words = {"color": GREY, "boxWidth": 12}
    stacked = {"stacked": kind == "bar"}
    scale = {"type": "logarithmic"} if logarithmic_unit else {"beginAtZero": True}
    named = {"display": bool(logarithmic_unit), "text": logarithmic_unit, "color": GREY}
    across = {**stacked, "grid": {"display": False}, "ticks": {**ticks, "autoSkip": True, "maxTicksLimit": 8}}
    up = {**stacked, **scale, "title": named, "grid": {}, "ticks": {**ticks, "maxTicksLimit": 6}}
    options = {
        "animation": False,
        "maintainAspectRatio": False,
        "interaction": {"mode": "index", "intersect": False},
        "plugins": {"legend": {"display": legend, "position": "bottom", "align": "start", "labels": words}},
        "scales": {"x": across, "y": up},
    }
    return Chart(kind, json.dumps({"labels": labels, "datasets": drawn}), json.dumps(options), title)
