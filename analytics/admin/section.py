"""One topic on the page of summaries, and how its numbers are written."""

from dataclasses import dataclass

from django.utils.safestring import SafeString

from analytics.admin.charts import Chart


@dataclass(frozen=True, slots=True)
class Section:
    """One topic: a chart or a table."""

    name: str
    """Of the summary, by which it is downloaded."""
    title: str
    note: str = ""
    chart: Chart | None = None
    table: SafeString | str = ""
    nothing: str = ""
    """What is said where there is neither."""


def per_cent(share: float | None) -> str:
    """Return a share in words, exact near the whole; a dash for None."""
    return "-" if share is None else f"{share:.2%}"
