"""How a run ended, in words that say what to do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from analytics.models import RunState, WindowState
from analytics.pipeline.job import Window
from analytics.spark_process import End, Ended
from analytics.spark_settings import NoJava

SIGKILL_STATUS: Final = 137
MAX_SAID: Final = 3
"""Windows whose errors are told with the run; all are told with the windows."""
AGAIN: Final = "What it had not done is done again."
FASTER: Final = (
    "Give runs more time (BROKER_SUMMARY_MINUTES), or Spark more cores (BROKER_SPARK_MASTER: local[*], or a cluster)."
)
KILLED: Final = (
    "Spark was killed, as Linux does where memory runs out: the machine needs more of it, or Spark less"
    f" (BROKER_SPARK_MEMORY). {AGAIN}"
)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends."""

    state: RunState
    error: str = ""
    """Why, and what to do; nothing where it has passed."""


STOPPED: Final = Ending(RunState.ABANDONED, f"Its worker was stopped. {AGAIN}")
"""Somebody else goes on with it."""
INTERRUPTED: Final = Ending(RunState.FAILED, "It was interrupted. The same range goes on where it stopped.")
"""Nobody does, until somebody asks for it again."""


@dataclass(slots=True)
class Heard:
    """What a run has told."""

    states: dict[Window, WindowState] = field(default_factory=dict)
    errors: dict[Window, str] = field(default_factory=dict)
    error: str = ""
    """Why it ended before its windows were done."""

    def window(self, window: Window, report: Mapping[str, Any]) -> None:
        """Take in what became of a window."""
        self.states[window] = WindowState(report["state"])
        if report["error"]:
            self.errors[window] = report["error"]


def ending(ended: Ended, windows: Collection[Window], heard: Heard, minutes: int) -> Ending:
    """Return how a run ends, all of whose windows were to be done within so many minutes."""
    undone = [window for window in windows if heard.states.get(window) is not WindowState.PASSED]
    if ended.end is End.STOPPED:
        return STOPPED
    if not undone:
        return Ending(RunState.PASSED)
    if ended.end is End.TOO_LONG:
        return Ending(RunState.FAILED, _too_long(windows, undone, heard, minutes))
    return Ending(RunState.FAILED, _reason(ended.status, undone, heard))


def cut_short(ended: Ended, windows: Collection[Window], heard: Heard, minutes: int) -> tuple[Window, str] | None:
    """Return the window that took too long, or too much memory, and what it fails of; None where there is none.

    It has failed like one that says so itself: tried at every turn again, from its beginning, it would be all that is
    done.
    """
    window = _under_way(windows, heard)
    if window and ended.end is End.TOO_LONG:
        return window, f"It was not done when the {minutes} minutes of its run were over. {FASTER}"
    if window and ended.end is End.BY_ITSELF and ended.status == SIGKILL_STATUS:
        return window, KILLED
    return None


def _under_way(windows: Collection[Window], heard: Heard) -> Window | None:
    return next((window for window in windows if window not in heard.states), None)


def _too_long(windows: Collection[Window], undone: Collection[Window], heard: Heard, minutes: int) -> str:
    if not heard.states:
        return f"{next(iter(windows))} alone takes longer than the {minutes} minutes of a run. {FASTER}"
    return f"It was ended after {minutes} minutes with {len(undone)} of {len(windows)} windows to do. {AGAIN} {FASTER}"


def not_begun(failure: Exception) -> Ending | None:
    """Return how a run ends that could not be started; None where that is nothing that an operator can mend."""
    match failure:
        case NoJava():
            return Ending(RunState.FAILED, f"{failure}.")
        case OSError():
            return Ending(RunState.FAILED, f"Spark cannot be started: {failure}.")
        case _:
            return None


def _reason(status: int, undone: Collection[Window], heard: Heard) -> str:
    failed = [f"{window}: {error}" for window, error in heard.errors.items() if window in undone]
    if failed:
        more = [f"and {len(failed) - MAX_SAID} more"] if len(failed) > MAX_SAID else []
        return "\n".join((f"Windows that are not summarized: {len(undone)}.", *failed[:MAX_SAID], *more))
    if heard.error:
        return heard.error
    if status == SIGKILL_STATUS:
        return KILLED
    return f"Spark ended with status {status} before all was done: see the log."
