"""What a run did, for a terminal."""

from collections.abc import Iterable, Iterator
from typing import Final

from analytics.models import RunWindow
from analytics.pipeline.job import Window

HEADINGS: Final = ("window", "state", "rows read", "rows written", "checks", "seconds")


def lines_of(windows: Iterable[RunWindow]) -> Iterator[str]:
    """Return the lines of a table that says of each window what was read, written and checked."""
    rows = [HEADINGS, *map(_row, windows)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, state, *figures in rows:
        right = (figure.rjust(width) for figure, width in zip(figures, widths[2:], strict=True))
        yield "  ".join((name.ljust(widths[0]), state.ljust(widths[1]), *right))


def _row(window: RunWindow) -> tuple[str, ...]:
    passed = sum(check["passed"] for check in window.checks)
    return (
        f"{Window(window.start, window.end)}",
        window.state,
        f"{sum(window.rows_read.values()):,}",
        f"{sum(window.rows_written.values()):,}",
        f"{passed} of {len(window.checks)}",
        f"{window.seconds:.1f}",
    )
