"""Stretches of time that people look at, and the steps in which charts show them."""

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from analytics.pipeline.job import DAY, HOUR

HOURS_SHOWN: Final = 3 * DAY
"""A longer range is shown day by day."""


@dataclass(frozen=True, slots=True)
class Range:
    """From whole hour to whole hour, UTC; the end is not part of it."""

    start: dt.datetime
    end: dt.datetime

    @property
    def step(self) -> str:
        """The unit of its charts, as `date_trunc` takes it: hour or day."""
        return "hour" if self.end - self.start <= HOURS_SHOWN else "day"

    def steps(self) -> Iterator[dt.datetime]:
        """Return the beginning of each step, those without any rows too."""
        width = HOUR if self.step == "hour" else DAY
        at = self.start if self.step == "hour" else day_of(self.start)
        while at < self.end:
            yield at
            at += width


LENGTHS: Final = {"24h": DAY, "3d": 3 * DAY, "7d": 7 * DAY, "28d": 28 * DAY}
"""The ranges up to now that one can choose."""


def latest(length: dt.timedelta, now: dt.datetime) -> Range:
    """Return the range of this length that ends with the hour under way."""
    end = now.replace(minute=0, second=0, microsecond=0) + HOUR
    return Range(end - length, end)


def day_of(at: dt.datetime) -> dt.datetime:
    """Return the beginning of an instant's day."""
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
