"""How lengths of time are written for people."""

from typing import Final

UNITS: Final = {"d": 86_400, "h": 3600, "min": 60}


def time_left(seconds: float | None) -> str:
    """Return how long something still takes, as the end of a sentence; empty if that is not known."""
    return "" if seconds is None else f", about {rough(max(0.0, seconds))} left"


def rough(seconds: float) -> str:
    """Return a length of time in its largest unit, rounded down."""
    unit, size = next((one for one in UNITS.items() if seconds >= one[1]), ("s", 1))
    return f"{seconds // size:.0f} {unit}"
