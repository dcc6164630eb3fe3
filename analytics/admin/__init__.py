"""Summaries and their runs: `charts` (figures for Chart.js), `sections` (the parts of the page), `live`
(live numbers), `runs` (all pages)."""

from analytics.admin import runs

__all__ = ["runs"]
