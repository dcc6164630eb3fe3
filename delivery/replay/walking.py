"""Going through much by id, a stretch at a time: along several indexes, and never reading more than is asked for.

Each arm of the walk is one stretch of one index, and gives up to `each` rows. Up to where the first of those ends that
have given so many, nothing is left out; what lies beyond is met later.
"""

from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

LARGEST_ID: Final = 2**63 - 1

FEWEST: Final = 10
"""Rows of an arm: a walk along many gets on all the same."""

WALK: Final = f"""
WITH met AS MATERIALIZED ({{arms}}),
full_arms AS (SELECT max(id) AS last_id FROM met GROUP BY arm HAVING count(*) = %(each)s),
horizon AS (SELECT min(last_id) AS last_id, count(*) = 0 AS is_end FROM full_arms),
stretch AS (SELECT m.* FROM met m CROSS JOIN horizon h WHERE m.id <= COALESCE(h.last_id, {LARGEST_ID}))"""


class Met(Protocol):
    """What a walk meets."""

    @property
    def met_id(self) -> int:
        """Return where on the way it is."""

    @property
    def is_wanted(self) -> bool:
        """Tell whether it is what the walk is for."""


AnyMet = TypeVar("AnyMet", bound=Met)


def each_of(limit: int, arms: int) -> int:
    """Return how many rows each arm gives, if there are to be about so many in all."""
    return min(limit, max(FEWEST, 2 * limit // max(arms, 1)))


def taken(met: Sequence[AnyMet], most: int) -> tuple[list[AnyMet], int | None]:
    """Return what is wanted of those met, in their order and `most` at most; and up to where the walk is with it.

    That is None where there is nothing left to meet.
    """
    wanted = [one for one in met if one.is_wanted]
    if len(wanted) > most:
        return wanted[:most], wanted[most - 1].met_id
    return wanted, met[-1].met_id if met else None
