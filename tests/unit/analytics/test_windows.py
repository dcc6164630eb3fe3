"""Windows: which are closed, which are due, which are made again."""

import datetime as dt
import json
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from analytics.admin.charts import OTHERS, greatest_first, in_order, lines, stacked_bars
from analytics.pipeline.job import DAY, HOUR, HOUR_LAG, Window, midnight, whole
from analytics.pipeline.window import stale
from analytics.windows import (
    RANGES,
    Calendar,
    Range,
    back_off,
    hours_of,
    is_closed,
    latest,
    pending_days,
    pending_hours,
    watermark,
    windows_between,
)

TODAY = dt.date(2026, 3, 5)
YESTERDAY = TODAY - DAY
LONG_AGO = midnight(dt.date(2026, 1, 1))
AHEAD = 7

FIRST_DAY: Final = dt.date(2026, 3, 2)


def at(hour: int, minute: int = 0, second: int = 0) -> dt.datetime:
    return midnight(TODAY) + dt.timedelta(hours=hour, minutes=minute, seconds=second)


def opened(first: dt.date, last: dt.date) -> frozenset[dt.date]:
    """Return the days that have partitions where the broker ran from the first to the last."""
    return frozenset(first + number * DAY for number in range((last - first).days + 1 + AHEAD))


def on(now: dt.datetime, first: dt.date = YESTERDAY) -> Calendar:
    return Calendar(now, opened(first, now.date()), watermark(now, None, call_seconds=0))


def named(windows: list[Window]) -> list[str]:
    return [f"{window}" for window in windows]


@pytest.mark.parametrize(
    ("now", "oldest", "call_seconds", "first"),
    [
        (at(0, 9, 59), None, 0, YESTERDAY),
        (at(0, 10), None, 0, TODAY),
        (at(0, 10), None, 30, YESTERDAY),
        (at(0, 10, 30), None, 30, TODAY),
        (at(0, 10), None, -30, TODAY),
        (at(12), at(0), 0, TODAY),
        (at(12), at(0) - dt.timedelta(seconds=1), 0, YESTERDAY),
        (at(0, 5), at(0, 4), 0, YESTERDAY),
    ],
)
def test_a_day_may_change_until_well_after_its_end_and_while_a_transaction_from_it_is_open(
    now: dt.datetime, oldest: dt.datetime | None, call_seconds: float, first: dt.date
) -> None:
    assert watermark(now, oldest, call_seconds=call_seconds) == first


def test_the_last_day_before_a_long_outage_is_sealed() -> None:
    last = TODAY - 30 * DAY
    known = Calendar(at(12), frozenset({last}) | opened(TODAY, TODAY), first_unsealed=TODAY)
    assert known.sealed() == [last]
    assert pending_days(known, (), ()) == [whole(last)]


@pytest.mark.parametrize(
    ("now", "due"),
    [
        (at(1, 1, 59), []),
        (at(1, 2), ["2026-03-05 00:00"]),
        (at(3, 2), ["2026-03-05 00:00", "2026-03-05 01:00", "2026-03-05 02:00"]),
        (at(0, 5), [f"2026-03-04 {hour:02}:00" for hour in range(24)]),
    ],
)
def test_closed_hours_of_unsealed_days_are_due(now: dt.datetime, due: list[str]) -> None:
    assert named(pending_hours(on(now), (), since=LONG_AGO)) == due


def test_hours_that_passed_or_precede_the_tables_are_not_due() -> None:
    first, second, third = hours_of(TODAY)[:3]
    assert pending_hours(on(at(3, 2)), {first}, since=LONG_AGO) == [second, third]
    assert pending_hours(on(at(3, 2)), (), since=at(1, 30)) == [second, third]
    assert pending_hours(on(at(3, 2)), (), since=at(2)) == [third]


def test_a_sealed_day_is_due_until_it_passes_and_when_late_data_arrives() -> None:
    known = on(at(12), first=YESTERDAY - DAY)
    before, yesterday = whole(YESTERDAY - DAY), whole(YESTERDAY)
    assert pending_days(known, (), ()) == [before, yesterday]
    assert pending_days(known, {before}, ()) == [yesterday]
    assert pending_days(known, {before, yesterday}, {YESTERDAY}) == [yesterday]


@pytest.mark.parametrize(
    ("failures", "hours"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 24), (7, 24), (10_000, 24)]
)
def test_a_failing_window_backs_off_up_to_a_day(failures: int, hours: int) -> None:
    assert back_off(failures) == hours * HOUR


@pytest.mark.parametrize(
    ("start", "end", "windows"),
    [
        (at(-24), at(0), ["2026-03-04"]),
        (at(-10), at(-9), ["2026-03-04"]),
        (at(-1), at(1), ["2026-03-04", "2026-03-05 00:00"]),
        (at(1), at(3), ["2026-03-05 01:00", "2026-03-05 02:00"]),
        (at(1, 20), at(2, 40), ["2026-03-05 01:00", "2026-03-05 02:00"]),
        (at(-240), at(-120), []),
    ],
)
def test_a_range_has_sealed_days_and_other_hours(start: dt.datetime, end: dt.datetime, windows: list[str]) -> None:
    assert named(windows_between(on(at(4, 30)), start, end)) == windows


@pytest.mark.parametrize(
    ("now", "end", "last"),
    [
        (at(4, 30), at(4, 20), Window(at(4), at(4, 20))),
        (at(4, 30), at(9), Window(at(4), at(4, 30))),
        (at(5, 1), at(5, 1), Window(at(5), at(5, 1))),
        (at(5, 2), at(4, 20), Window(at(4), at(5))),
    ],
)
def test_the_current_hour_ends_with_the_range(now: dt.datetime, end: dt.datetime, last: Window) -> None:
    assert windows_between(on(now), at(4), end)[-1] == last


@dataclass
class History:
    """A broker that makes summaries: its days, and the windows that have passed."""

    now: dt.datetime
    oldest: dt.datetime | None = None
    days: set[dt.date] = field(default_factory=set)
    passed: set[Window] = field(default_factory=set)
    pieces: set[Window] = field(default_factory=set)
    """What counts in the lake: a window takes the place of those that it overlaps."""

    @property
    def calendar(self) -> Calendar:
        first_unsealed = watermark(self.now, self.oldest, call_seconds=30)
        summarized = frozenset(window.day for window in self.passed if window.is_day)
        return Calendar(self.now, frozenset(self.days), first_unsealed, summarized=summarized)

    def live(self, minutes: int) -> None:
        self.now += dt.timedelta(minutes=minutes)
        self.days |= opened(self.now.date(), self.now.date())

    def summarize(self, windows: list[Window]) -> None:
        assert windows == sorted(windows)
        assert all(window.end <= self.now and window.day in self.days for window in windows)
        self.passed |= {window for window in windows if window.end + HOUR_LAG <= self.now}
        for one in windows:
            self.pieces = {piece for piece in self.pieces if piece.end <= one.start or one.end <= piece.start} | {one}

    def summarize_hours(self) -> None:
        self.summarize(pending_hours(self.calendar, self.passed, since=LONG_AGO))

    def summarize_days(self) -> None:
        self.summarize(pending_days(self.calendar, self.passed, ()))

    def summarize_last(self, minutes: int) -> None:
        self.summarize(windows_between(self.calendar, self.now - dt.timedelta(minutes=minutes), self.now))

    def write(self, minutes: int) -> None:
        """Begin a transaction, or let one that began a while ago be the oldest."""
        self.oldest = self.now - dt.timedelta(minutes=minutes)

    def drop(self, keep: int) -> None:
        self.days -= {day for day in self.days if day < self.now.date() - keep * DAY}

    def in_force(self, day: dt.date) -> list[Window]:
        """Return the windows with the day's figures: the whole day, or its hours."""
        return sorted(piece for piece in self.pieces & self.passed if piece.day == day)


minutes, hours_and_days = st.integers(1, 3_000), st.sampled_from([History.summarize_hours, History.summarize_days])
steps = st.one_of(
    st.tuples(hours_and_days),
    st.tuples(st.sampled_from([History.live, History.summarize_last, History.write]), minutes),
    st.tuples(st.just(History.drop), st.integers(1, 4)),
)


@given(st.lists(steps, max_size=30))
@example(
    [(History.live, 3_000), (History.summarize_days,), (History.write, 3_000), (History.summarize_last, 3_000)]
).via("a transaction of a day that is summarized begins to write")
def test_every_closed_hour_is_summarized_exactly_once_in_any_order_of_runs(happens: list[tuple[Any, ...]]) -> None:
    history = History(midnight(TODAY))
    history.live(0)
    for step, *amount in happens:
        step(history, *amount)
    history.summarize_hours()
    history.summarize_days()
    for day in history.days:
        closed = [hour.start for hour in hours_of(day) if is_closed(hour, history.now)]
        covered = [start for window in history.in_force(day) for start in hours_in(window)]
        assert covered in (closed, [hour.start for hour in hours_of(day) if history.calendar.is_sealed(day)])


def hours_in(window: Window) -> list[dt.datetime]:
    return [window.start + number * HOUR for number in range((window.end - window.start) // HOUR)]


def days(*after: int) -> list[dt.date]:
    return [FIRST_DAY + dt.timedelta(days=number) for number in after]


@pytest.mark.parametrize(
    ("changed", "made", "remade"),
    [
        pytest.param([], [], [], id="nothing has changed"),
        pytest.param([5], [5], [6, 28, 30], id="a day was done again"),
        pytest.param([0], [0], [2, 5, 6, 28], id="four weeks are made of it"),
        pytest.param([40], [40], [], id="no day comes after it"),
        pytest.param([5, 6], [5, 6], [28, 30], id="one after it was done again too"),
        pytest.param([5, 6], [6, 5], [6, 28, 30], id="one after it had been done before it was"),
        pytest.param([5, 6], [6, 5, 6], [28, 30], id="hours of one after it were done, some of them later"),
        pytest.param([5], [], [5, 6, 28, 30], id="a run before changed it and was ended, or an idle window did"),
        pytest.param([5], [6], [5, 28, 30], id="likewise, and one after it was done in this run"),
        pytest.param([5, 6], [5], [6, 28, 30], id="likewise, one after it, and it was done in this run"),
    ],
)
def test_a_day_is_stale_after_an_earlier_one_changed(changed: list[int], made: list[int], remade: list[int]) -> None:
    assert stale(days(0, 2, 5, 6, 28, 30), days(*changed), days(*made)) == days(*remade)


NOON = dt.datetime(2026, 5, 4, 12, tzinfo=dt.UTC)

THREE_HOURS = Range(NOON, NOON + 3 * HOUR)


def test_the_latest_range_ends_with_the_hour_under_way() -> None:
    assert latest(DAY, NOON + dt.timedelta(minutes=1)) == Range(NOON + HOUR - DAY, NOON + HOUR)


@pytest.mark.parametrize(("length", "step", "steps"), [("24h", "hour", 24), ("3d", "hour", 72), ("7d", "day", 8)])
def test_long_ranges_are_shown_day_by_day(length: str, step: str, steps: int) -> None:
    asked = latest(RANGES[length], NOON)
    assert (asked.step, len([*asked.steps()])) == (step, steps)


def test_the_first_step_of_days_holds_the_beginning_of_the_range() -> None:
    first, *_, last = latest(RANGES["7d"], NOON).steps()
    assert (first, last) == (dt.datetime(2026, 4, 27, tzinfo=dt.UTC), dt.datetime(2026, 5, 4, tzinfo=dt.UTC))


def test_bars_have_a_value_for_every_step() -> None:
    data = json.loads(stacked_bars("t", THREE_HOURS, {"a": {NOON + HOUR: 5}}).data)
    assert data["labels"] == ["04 May 12:00", "04 May 13:00", "04 May 14:00"]
    assert data["datasets"][0]["data"] == [0, 5, 0]


def test_a_line_is_broken_where_there_is_no_value() -> None:
    data = json.loads(lines("t", THREE_HOURS, {"p50": {NOON: 1.5}}, logarithmic_unit="ms").data)
    assert data["datasets"][0]["data"] == [1.5, None, None]


def test_lines_are_told_apart_by_more_than_their_colour() -> None:
    data = json.loads(lines("t", THREE_HOURS, {"p50": {}, "p95": {}, "p99": {}}).data)
    assert len({str(one["borderDash"]) for one in data["datasets"]}) == 3


def test_the_greatest_series_comes_first_and_the_rest_last() -> None:
    found = {(NOON, OTHERS): 20, (NOON, "small"): 1, (NOON, "middle"): 8, (NOON, "big"): 5, (NOON + HOUR, "big"): 5}
    assert [*greatest_first(found).items()] == [
        ("big", {NOON: 5, NOON + HOUR: 5}),
        ("middle", {NOON: 8}),
        ("small", {NOON: 1}),
        (OTHERS, {NOON: 20}),
    ]


def test_a_series_that_no_order_names_is_drawn_all_the_same() -> None:
    assert in_order({(NOON, "NEW"): 2, (NOON, "B"): 1}, ["A", "B"]) == {"B": {NOON: 1}, "NEW": {NOON: 2}}
