"""What is broken when, by a seed: the same seed breaks the same things at the same moments."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.faults.everything.breakages import BREAKAGES, Breakage
from tests.faults.everything.scenes import dice

BETWEEN_SECONDS = (1.0, 6.0)
"""From one step's end to the next, at least and at most."""
BRIEF_SECONDS = (0.5, 8.0)
LONG_EVERY = 12
"""So many steps are brief for one that takes as long as in the case of its own."""
TWO_EVERY = 4
"""So many steps break one thing for one that breaks two at once."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to break, for how long, and what decides whom it hits."""

    breakage: Breakage
    seconds: float
    seed: str

    def __str__(self) -> str:
        return f"{self.breakage.name} {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Step:
    """What is broken at once, so many seconds after the step before."""

    after: float
    faults: Sequence[Fault]

    def __str__(self) -> str:
        return " with ".join(map(str, self.faults))


def steps(seed: int) -> Iterator[Step]:
    """Yield steps without end; each is decided by the seed and its place alone, however long those before took."""
    return (step(f"{seed}.{place}") for place in itertools.count())


def step(seed: str) -> Step:
    """Return one step: one thing to break, or two that do not touch the same."""
    random = dice(seed)
    first = random.choice(BREAKAGES)
    apart = [other for other in BREAKAGES if not other.touches & first.touches]
    chosen = [first, random.choice(apart)] if apart and random.randrange(TWO_EVERY) == 0 else [first]
    is_long = random.randrange(LONG_EVERY) == 0
    after = random.uniform(*BETWEEN_SECONDS)
    brief = [min(one.seconds, random.uniform(*BRIEF_SECONDS)) for one in chosen]
    seconds = [one.seconds for one in chosen] if is_long else brief
    return Step(
        after, [Fault(*each, f"{seed}.{place}") for place, each in enumerate(zip(chosen, seconds, strict=True))]
    )
