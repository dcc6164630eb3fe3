"""Windows and ranges of time: which are closed, sealed and due. Only rules; the clock is an argument."""

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from analytics.pipeline.job import DAY, HOUR, HOUR_LAG, Window, midnight, whole

DAY_LAG: Final = dt.timedelta(minutes=10)
"""A day is sealed this long after its end, at the earliest."""

RANGES: Final = {"24h": DAY, "3d": 3 * DAY, "7d": 7 * DAY, "28d": 28 * DAY}
"""The ranges up to now that users can choose."""


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written and not ended; its rows may be filed under a day that is over."""

    pid: int
    """Of the PostgreSQL process."""
    application: str
    """Its `application_name`, possibly empty."""
    since: dt.datetime

    def __str__(self) -> str:
        process = f"{self.pid} ({self.application})" if self.application else f"{self.pid}"
        return (
            f"Days from {self.since:%Y-%m-%d} on are not summarized as a whole: PostgreSQL's process {process} has had"
            f" a transaction open since {self.since:%Y-%m-%d %H:%M} UTC that has written something. End it, if need be"
            f" by SELECT pg_terminate_backend({self.pid})."
        )


@dataclass(frozen=True, slots=True)
class Calendar:
    """The days that exist at an instant, and which of them can no longer change."""

    now: dt.datetime
    days: frozenset[dt.date]
    """Those with partitions: opened, and not dropped by retention."""
    first_unsealed: dt.date
    """The watermark: rows may still be filed under this day and later ones."""
    blocker: OpenTransaction | None = None
    """The transaction without which more days would be sealed."""
    summarized: frozenset[dt.date] = frozenset()
    """Days that were summarized as a whole: none of their hours may take the place of that."""

    def is_sealed(self, day: dt.date) -> bool:
        """Return whether nothing is filed under a day any more, or nothing was when it was summarized as a whole.

        This does not wait for the next day to open: after an outage it may never open.
        """
        return day < self.first_unsealed or day in self.summarized

    def sealed(self) -> list[dt.date]:
        """Return the days that can no longer change, the oldest first."""
        return [day for day in sorted(self.days) if self.is_sealed(day)]


@dataclass(frozen=True, slots=True)
class Range:
    """A range of whole hours, UTC; the end is not part of it."""

    start: dt.datetime
    end: dt.datetime

    @property
    def step(self) -> str:
        """The unit of its charts, as `date_trunc` takes it: hour, or day for ranges of more than three days."""
        return "hour" if self.end - self.start <= 3 * DAY else "day"

    def steps(self) -> Iterator[dt.datetime]:
        """Return the beginning of each step, with or without rows."""
        width = HOUR if self.step == "hour" else DAY
        at = self.start if self.step == "hour" else midnight(self.start.date())
        while at < self.end:
            yield at
            at += width


def latest(length: dt.timedelta, now: dt.datetime) -> Range:
    """Return the range of this length that ends with the current hour."""
    end = now.replace(minute=0, second=0, microsecond=0) + HOUR
    return Range(end - length, end)


def watermark(now: dt.datetime, oldest_transaction: dt.datetime | None, *, call_seconds: float) -> dt.date:
    """Return the first day that may still change: because of the time, or of an open transaction that has written.

    A SYNC call is filed when it ends, at most `call_seconds` after it was published.
    """
    past = now - DAY_LAG - dt.timedelta(seconds=max(0.0, call_seconds))
    return min(past, oldest_transaction or past).date()


def hours_of(day: dt.date) -> list[Window]:
    """Return the windows of a day's hours."""
    starts = [midnight(day) + number * HOUR for number in range(24)]
    return [Window(start, start + HOUR) for start in starts]


def is_closed(hour: Window, now: dt.datetime) -> bool:
    """Return whether an hour is over, and everything that ended in it is stored."""
    return hour.end + HOUR_LAG <= now


def pending_hours(calendar: Calendar, passed: Collection[Window], *, since: dt.datetime) -> list[Window]:
    """Return the closed hours of unsealed days that have not passed, the oldest first; none before `since`."""
    days = [day for day in sorted(calendar.days) if not calendar.is_sealed(day)]
    hours = [hour for day in days for hour in hours_of(day)]
    return [hour for hour in hours if since < hour.end and is_closed(hour, calendar.now) and hour not in passed]


def pending_days(calendar: Calendar, passed: Collection[Window], late: Collection[dt.date]) -> list[Window]:
    """Return the sealed days that have not passed, or got late data since, the oldest first."""
    days = [whole(day) for day in calendar.sealed()]
    return [day for day in days if day not in passed or day.day in late]


def back_off(failures: int) -> dt.timedelta:
    """Return the delay before a window is tried again after this many failures in a row: 1 h, 2 h, 4 h … a day."""
    return min(HOUR * (1 << min(failures - 1, 5)), DAY)


def windows_between(calendar: Calendar, start: dt.datetime, end: dt.datetime) -> list[Window]:
    """Return the windows of a range that has begun, the oldest first.

    A sealed day is one window. Of an unsealed day each hour is one; an hour that is not closed yet ends where the
    range does. The hour's own window replaces that part later.
    """
    end = min(end, calendar.now)
    windows = list[Window]()
    for day in sorted(calendar.days):
        if calendar.is_sealed(day):
            windows.append(whole(day))
        else:
            hours = hours_of(day)
            windows += [one if is_closed(one, calendar.now) else Window(one.start, min(one.end, end)) for one in hours]
    return [window for window in windows if window.start < end and start < window.end]
