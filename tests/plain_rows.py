"""Grouping rows, and measuring times, in plain Python."""

import datetime as dt
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any, Final

from analytics.pipeline.quantiles import bucket_of
from tests.frames import Row

Group = tuple[Any, ...]

MILLISECOND: Final = dt.timedelta(milliseconds=1)


def once(rows: Iterable[Row]) -> dict[int, Row]:
    return {row["id"]: row for row in rows}


def grouped(rows: Iterable[Any], key: Callable[[Any], Group], summed: Callable[[list[Any]], Row]) -> dict[Group, Row]:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return {group: summed(members) for group, members in groups.items()}


def took(times: list[int]) -> Row:
    """Return what is exact; of quantiles the time itself, from which a bucket's middle is less than 1 % away."""
    places = {f"p{share}_ms": max(math.ceil(Fraction(share, 100) * len(times)), 1) for share in (50, 90, 95, 99)}
    exact = {name: sorted(times)[place - 1] for name, place in places.items()}
    return {"count": len(times), "max_ms": max(times), "histogram": Counter(map(bucket_of, times)), **exact}


def hour(moment: dt.datetime) -> dt.datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def ms(start: dt.datetime, end: dt.datetime) -> int:
    return (end - start) // MILLISECOND
