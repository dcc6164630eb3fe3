"""Variants of one load, measured by turns on the same stack: what each costs beside the first, and how that varies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean
from typing import Final

from benchmarks.figures import Figure, Outcome, Target
from benchmarks.throughput import DELIVERED

ROUNDS: Final = 2
"""Every other one goes the other way round: what only comes first, or last, is not thereby the faster one."""

Variants = Mapping[str, Callable[[], Outcome]]
"""How each is measured, by name; the first is what the others are compared with."""


def compared(
    name: str, variants: Variants, target: Target, *, shown: Sequence[str] = (DELIVERED,), rounds: int = ROUNDS
) -> Outcome:
    """Measure all variants in each round; return the mean of the figures that are `shown`, and how they compare."""
    outcomes: dict[str, list[Outcome]] = {what: [] for what in variants}
    for number in range(rounds):
        for what in reversed([*variants]) if number % 2 else variants:
            outcomes[what].append(variants[what]())
    every = [outcome for several in outcomes.values() for outcome in several]
    void = next((outcome.void for outcome in every if outcome.void), "")
    figures = [*_shown(name, outcomes, shown), *_compared(name, outcomes, target)]
    return Outcome(figures, [text for outcome in every for text in outcome.problems], void)


def _shown(name: str, outcomes: Mapping[str, Sequence[Outcome]], shown: Sequence[str]) -> Iterator[Figure]:
    for figure in shown:
        for what, several in outcomes.items():
            (unit,) = {one.unit for one in several[0].figures if one.figure == figure} or {""}
            if unit:
                yield Figure(name, f"{figure}, {what}", mean(outcome.value(figure) for outcome in several), unit)


def _compared(name: str, outcomes: Mapping[str, Sequence[Outcome]], target: Target) -> Iterator[Figure]:
    """Yield how much slower or faster the rounds of each were, then how they compare with the first."""
    rates = {what: [one.value(DELIVERED) for one in several] for what, several in outcomes.items()}
    for what, values in rates.items():
        yield Figure(name, f"spread, {what}", 100 * (max(values) - min(values)) / max(1e-9, mean(values)), "%")
    first, *others = rates
    for what in others:
        ratio = mean(rates[what]) / max(1e-9, mean(rates[first]))
        yield Figure(name, f"{what} / {first}", ratio, "times", target=target)
