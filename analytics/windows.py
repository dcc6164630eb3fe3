"""Which windows time is cut into, when one is closed, and which of them are due: rules that only reckon."""

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from analytics.pipeline.job import DAY, HOUR, Window

HOUR_LAG: Final = dt.timedelta(minutes=2)
"""So long after its end an hour is read: what ended in it has been settled by then."""
DAY_LAG: Final = dt.timedelta(minutes=10)
"""So long after its end a day is sealed, at the earliest."""
MAX_REST: Final = DAY


@dataclass(frozen=True, slots=True)
class Calendar:
    """Which days there are at an instant, and which of them no longer change."""

    now: dt.datetime
    days: frozenset[dt.date]
    """Those with partitions: opened, and not dropped by retention."""
    growing_from: dt.date
    """The first day that something may still be filed under because of the time."""

    def is_sealed(self, day: dt.date) -> bool:
        """Tell whether nothing is filed under a day any more.

        Whether the next one has been opened does not matter: of the last one before an outage it never will be.
        """
        return day < self.growing_from

    def sealed(self) -> Iterator[dt.date]:
        """Return the days that do not grow, the oldest first."""
        return (day for day in sorted(self.days) if self.is_sealed(day))

    def growing(self) -> Iterator[dt.date]:
        """Return the others that have begun, the oldest first."""
        return (day for day in sorted(self.days) if not self.is_sealed(day) and midnight(day) < self.now)


def first_growing(now: dt.datetime, oldest_transaction: dt.datetime | None, *, call_seconds: float) -> dt.date:
    """Return the first day that may still grow; the end of those before it is well past, for whoever writes too.

    A SYNC call is filed when it ends, at most `call_seconds` after it was published.
    """
    past = now - DAY_LAG - dt.timedelta(seconds=max(0.0, call_seconds))
    return min(past, oldest_transaction or past).date()


def midnight(day: dt.date) -> dt.datetime:
    """Return the instant at which a day begins."""
    return dt.datetime.combine(day, dt.time(), dt.UTC)


def whole(day: dt.date) -> Window:
    """Return the window of a whole day."""
    return Window(midnight(day), midnight(day + DAY))


def hours_of(day: dt.date) -> list[Window]:
    """Return the windows of a day's hours."""
    starts = [midnight(day) + number * HOUR for number in range(24)]
    return [Window(start, start + HOUR) for start in starts]


def is_closed(hour: Window, now: dt.datetime) -> bool:
    """Tell whether an hour is over, and all that ended in it is stored."""
    return hour.end + HOUR_LAG <= now


def due_hours(calendar: Calendar, passed: Collection[Window], *, since: dt.datetime) -> list[Window]:
    """Return the closed hours of days that still grow and have not passed, the oldest first; none before `since`."""
    hours = [hour for day in calendar.growing() if whole(day) not in passed for hour in hours_of(day)]
    return [hour for hour in hours if since < hour.end and is_closed(hour, calendar.now) and hour not in passed]


def due_days(calendar: Calendar, passed: Collection[Window], touched: Collection[dt.date]) -> list[Window]:
    """Return the sealed days that have not passed, or were touched since, the oldest first."""
    days = [whole(day) for day in calendar.sealed()]
    return [day for day in days if day not in passed or day.day in touched]


def rest(failures: int) -> dt.timedelta:
    """Return how long a window is left alone that has failed so often since it last passed: 1 h, 2 h, 4 h … a day."""
    return min(HOUR * (1 << min(failures - 1, 5)), MAX_REST)


def windows_between(calendar: Calendar, start: dt.datetime, end: dt.datetime) -> list[Window]:
    """Return the windows of a range that has begun, the oldest first.

    A day that is sealed is one window, whole. Of one that grows each hour is one; an hour that is not closed yet ends
    where the range does: such a piece is replaced by the hour's own window, and never counts as that.
    """
    end = min(end, calendar.now)
    return [
        window
        for day in sorted(calendar.days)
        for window in ([whole(day)] if calendar.is_sealed(day) else _pieces(calendar, day, end))
        if window.start < end and start < window.end
    ]


def _pieces(calendar: Calendar, day: dt.date, end: dt.datetime) -> Iterator[Window]:
    for hour in hours_of(day):
        yield hour if is_closed(hour, calendar.now) else Window(hour.start, min(hour.end, end))
