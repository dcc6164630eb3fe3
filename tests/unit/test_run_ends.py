"""How a run ended, in words that say what to do."""

import datetime as dt

import pytest

from analytics.models import RunState
from analytics.pipeline.job import Window
from analytics.run_results import AGAIN, FASTER, KILLED, Ending, Heard, cut_short, ending, not_begun
from analytics.spark_process import End, Ended
from analytics.spark_settings import NoJava
from analytics.windows import hours_of

WINDOWS = hours_of(dt.date(2026, 3, 5))[:5]
BY_ITSELF, TOO_LONG, STOPPED = End.BY_ITSELF, End.TOO_LONG, End.STOPPED
PASSED, FAILED, ABANDONED = RunState.PASSED, RunState.FAILED, RunState.ABANDONED

TIME_IS_OVER = f"It was ended after 60 minutes with 3 of 5 windows to do. {AGAIN} {FASTER}"
TIME_IS_OVER_FOR_ONE = f"2026-03-05 00:00 alone takes longer than the 60 minutes of a run. {FASTER}"


def heard(passed: int = 0, failed: int = 0, error: str = "") -> Heard:
    """Return what a run has told that has passed the first windows, and failed the ones after them."""
    told = Heard(error=error)
    for number, window in enumerate(WINDOWS[: passed + failed]):
        report = {"state": "PASSED", "error": ""} if number < passed else {"state": "FAILED", "error": "rows are lost"}
        told.window(window, report)
    return told


def failures(*windows: Window) -> list[str]:
    return [f"{window}: rows are lost" for window in windows]


@pytest.mark.parametrize(
    ("ended", "told", "state", "said"),
    [
        (Ended(BY_ITSELF, 0), heard(passed=5), PASSED, []),
        (Ended(TOO_LONG, 143), heard(passed=5), PASSED, []),
        (Ended(STOPPED, 143), heard(passed=2), ABANDONED, [f"Its worker was stopped. {AGAIN}"]),
        (Ended(TOO_LONG, 143), heard(passed=2), FAILED, [TIME_IS_OVER]),
        (Ended(TOO_LONG, 143), heard(), FAILED, [TIME_IS_OVER_FOR_ONE]),
        (Ended(BY_ITSELF, 1), heard(4, 1), FAILED, ["Windows that are not summarized: 1.", *failures(WINDOWS[4])]),
        (
            Ended(BY_ITSELF, 1),
            heard(1, 4),
            FAILED,
            ["Windows that are not summarized: 4.", *failures(*WINDOWS[1:4]), "and 1 more"],
        ),
        (Ended(BY_ITSELF, 75), heard(error="another run is under way"), FAILED, ["another run is under way"]),
        (Ended(BY_ITSELF, 1), heard(), FAILED, ["Spark ended with status 1 before all was done: see the log."]),
        (Ended(BY_ITSELF, 137), heard(), FAILED, [KILLED]),
    ],
)
def test_ending(ended: Ended, told: Heard, state: RunState, said: list[str]) -> None:
    assert ending(ended, WINDOWS, told, minutes=60) == Ending(state, "\n".join(said))


NOT_IN_TIME = f"It was not done when the 60 minutes of its run were over. {FASTER}"


@pytest.mark.parametrize(
    ("ended", "told", "cut"),
    [
        (Ended(TOO_LONG, 143), heard(), (WINDOWS[0], NOT_IN_TIME)),
        (Ended(TOO_LONG, 143), heard(passed=1, failed=1), (WINDOWS[2], NOT_IN_TIME)),
        (Ended(TOO_LONG, 143), heard(passed=5), None),
        (Ended(BY_ITSELF, 137), heard(passed=2), (WINDOWS[2], KILLED)),
        (Ended(STOPPED, 137), heard(passed=2), None),
        (Ended(BY_ITSELF, 2), heard(passed=2, error="the database is away"), None),
    ],
)
def test_the_window_that_takes_too_long_or_too_much_has_failed(
    ended: Ended, told: Heard, cut: tuple[Window, str] | None
) -> None:
    assert cut_short(ended, WINDOWS, told, minutes=60) == cut


def test_what_an_operator_can_mend_is_said_and_what_is_our_own_fault_is_not_hidden() -> None:
    assert not_begun(NoJava("Spark finds no Java: set JAVA_HOME")) == Ending(
        FAILED, "Spark finds no Java: set JAVA_HOME."
    )
    no_space = OSError(28, "No space left on device")
    assert not_begun(no_space) == Ending(FAILED, "Spark cannot be started: [Errno 28] No space left on device.")
    assert not_begun(KeyError("kind")) is None
