"""Summaries and their runs, for people.

`charts` (figures as Chart.js takes them) · `sections` (what the page shows of each topic) · `overview` (the page and
its downloads) · `runs`
"""

from analytics.admin import overview, runs

__all__ = ["overview", "runs"]
