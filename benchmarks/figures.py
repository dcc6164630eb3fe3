"""The results of a scenario: figures, each with its limit and its target, and what went wrong."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FIELDS: Final = ("scenario", "figure", "value", "unit", "bare")
COLUMNS: Final = "{:<16} {:<34} {:>12} {:<8} {:>12}  {}"


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure is to reach: at least or at most a value."""

    sign: str
    value: float


def at_least(value: float) -> Target:
    """Return the target of a figure that should be large."""
    return Target("≥", value)


def at_most(value: float) -> Target:
    """Return the target of a figure that should be small."""
    return Target("≤", value)


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that was measured."""

    scenario: str
    figure: str
    value: float
    unit: str
    bare: float | None = None
    """The same with only a client and the sink, in the same run; None where that makes no sense."""
    target: Target | None = None

    def __str__(self) -> str:
        bare = "" if self.bare is None else rounded(self.bare)
        verdict = ""
        if target := self.target:
            is_met = self.value >= target.value if target.sign == "≥" else self.value <= target.value
            verdict = f"target {target.sign} {rounded(target.value)}{'' if is_met else ', missed'}"
        return COLUMNS.format(self.scenario, self.figure, rounded(self.value), self.unit, bare, verdict).rstrip()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one scenario."""

    figures: Sequence[Figure]
    problems: Sequence[str] = field(default_factory=tuple)
    """What the broker did wrong, which makes the figures worthless."""
    void: str = ""
    """Why the figures may say nothing about the broker."""

    def value(self, figure: str) -> float:
        """Return the value of the figure of that name."""
        return next(one.value for one in self.figures if one.figure == figure)


def table(figures: Iterable[Figure]) -> str:
    """Return figures as text, a line each."""
    head = COLUMNS.format("scenario", "figure", "value", "unit", "bare", "")
    return "\n".join([head.rstrip(), *map(str, figures)])


def write(figures: Iterable[Figure], path: Path) -> None:
    """Write figures as a JSON list."""
    rows = [{name: getattr(figure, name) for name in FIELDS} for figure in figures]
    path.write_text(json.dumps(rows, indent=1) + "\n")


def rounded(value: float) -> str:
    """Return a number with three or four significant digits."""
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2  # noqa: PLR2004 - a thousandth is enough
    return f"{value:,.{decimals}f}"


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile of sorted values, 0 of nothing."""
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
