"""What became of windows in the runs so far: which are summarized, and which failed and are left alone for a while."""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field

from django.db.models import F

from analytics.models import RunWindow, WindowState
from analytics.pipeline.job import Window
from analytics.windows import HOUR_LAG, midnight, rest


@dataclass(slots=True)
class Outcomes:
    """The windows by what became of each the last time."""

    passed: set[Window] = field(default_factory=set)
    failures: dict[Window, list[dt.datetime]] = field(default_factory=dict)
    """When each has failed since it last passed."""

    def add(self, window: Window, state: WindowState, at: dt.datetime) -> None:
        """Take in what became of a window, later than all that was taken in."""
        if state is WindowState.PASSED:
            self.passed.add(window)
            self.failures.pop(window, None)
        else:
            self.passed.discard(window)
            self.failures.setdefault(window, []).append(at)

    def rested(self, windows: Iterable[Window], now: dt.datetime) -> list[Window]:
        """Return those of the windows that have not failed lately; the oftener they have, the longer that is."""
        return [window for window in windows if not self._rests(window, now)]

    def _rests(self, window: Window, now: dt.datetime) -> bool:
        failed = self.failures.get(window, [])
        return bool(failed) and now < failed[-1] + rest(len(failed))


def outcomes_from(day: dt.date) -> Outcomes:
    """Return what became of the windows from a day on after they were closed; what was before does not count."""
    return _outcomes(start__gte=midnight(day), run__started_at__gte=F("end") + HOUR_LAG)


def outcomes_since(instant: dt.datetime) -> Outcomes:
    """Return what has become of windows since an instant."""
    return _outcomes(ended_at__gte=instant)


def _outcomes(**conditions: object) -> Outcomes:
    outcomes = Outcomes()
    rows = RunWindow.objects.filter(**conditions).order_by("ended_at", "id")
    for start, end, state, at in rows.values_list("start", "end", "state", "ended_at"):
        outcomes.add(Window(start, end), WindowState(state), at)
    return outcomes
