"""What all figures are asked for: a range, and perhaps one subscriber."""

from dataclasses import dataclass
from typing import Any, Final, LiteralString

from analytics.ranges import Range
from broker_project.core.db import rows

WITHIN: Final = "hour >= %(start)s AND hour < %(end)s"
THEIRS: Final = "(%(subscriber_id)s::bigint IS NULL OR subscriber_id = %(subscriber_id)s)"
OF_ALL: Final = "%(subscriber_id)s::bigint IS NULL"
OF_ONE: Final = "subscriber_id = %(subscriber_id)s"
"""Where the totals of all are kept: of these two one selects nothing, without reading."""
SELECTED: Final = f"{WITHIN} AND {THEIRS}"
STEP: Final = "date_trunc(%(step)s, hour)"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is looked at."""

    range: Range
    subscriber_id: int | None = None
    """None: all of them, and what belongs to none."""


def selected(statement: LiteralString, selection: Selection) -> list[tuple[Any, ...]]:
    """Return the rows of a statement that names the selection's `start`, `end`, `step` and `subscriber_id`."""
    asked = selection.range
    arguments = {"start": asked.start, "end": asked.end, "step": asked.step, "subscriber_id": selection.subscriber_id}
    return rows(statement, arguments)
