"""Summaries and their runs: `charts` (figures for Chart.js), `sections` (the parts of the page), `live`
(live numbers), `dashboard` (the site's first page), `runs` (all other pages)."""

from analytics.admin import runs

__all__ = ["runs"]
