"""Summaries and their runs, for people.

`choosing` (what is looked at) · `charts` (figures as Chart.js takes them) · `section`, `headline`, `charted`, `tabled`,
`sections` (what the page shows) · `overview` (the page and its downloads) · `runs`
"""

from analytics.admin import overview, runs

__all__ = ["overview", "runs"]
