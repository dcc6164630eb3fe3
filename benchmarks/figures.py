"""The results of a scenario: figures, each with its limit and its target, and what the broker did wrong."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

PERCENTS: Final = (50, 95, 99)


class Target(NamedTuple):
    """What a figure is to reach: at least or at most a value."""

    sign: str
    value: float


at_least: Final = partial(Target, "≥")
at_most: Final = partial(Target, "≤")
NO_TARGETS: Final[Mapping[str, Target]] = {}


@dataclass(frozen=True, slots=True)
class Figure:
    """One number that was measured."""

    name: str
    value: float
    unit: str
    bare: float | None = None
    """The same with only a client and the sink, in the same run; None where that makes no sense."""
    target: Target | None = None

    def verdict(self) -> str:
        """Return the target, and whether it was missed."""
        if not self.target:
            return ""
        sign, wanted = self.target
        is_met = self.value >= wanted if sign == "≥" else self.value <= wanted
        return f"target {sign} {rounded(wanted)}{'' if is_met else ', missed'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one scenario."""

    figures: Sequence[Figure]
    problems: Sequence[str] = ()
    """What the broker did wrong, which makes the figures worthless."""
    void: str = ""
    """Why the figures may say nothing about the broker."""

    def value(self, name: str) -> float:
        """Return the value of the figure of that name."""
        return next(figure.value for figure in self.figures if figure.name == name)


def merged(outcomes: Mapping[str, Outcome]) -> Outcome:
    """Return one outcome of several, each by the ending that the names of its figures get."""
    every = outcomes.values()
    return Outcome(
        [replace(figure, name=figure.name + end) for end, outcome in outcomes.items() for figure in outcome.figures],
        [problem for outcome in every for problem in outcome.problems],
        next((outcome.void for outcome in every if outcome.void), ""),
    )


def rounded(value: float) -> str:
    """Return a number with three or four significant digits."""
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2  # noqa: PLR2004 - a thousandth is enough
    return f"{value:,.{decimals}f}"


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the percentile of sorted values, 0 of nothing."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))] if ordered else 0.0


def p95_ms(seconds: Iterable[float]) -> float:
    """Return the 95th percentile of seconds, in milliseconds."""
    return percentile(sorted(seconds), 95) * 1e3


def percentiles(what: str, seconds: Iterable[float], targets: Mapping[str, Target] = NO_TARGETS) -> Iterator[Figure]:
    """Yield percentiles of seconds in milliseconds, with targets by name."""
    ordered = sorted(seconds)
    for percent in PERCENTS:
        name = f"{what} p{percent}"
        yield Figure(name, percentile(ordered, percent) * 1e3, "ms", target=targets.get(name))


def ratio(value: float, other: float) -> float:
    """Return how many times `other` a value is, also if `other` is 0."""
    return value / max(1e-9, other)
