"""Every scenario by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.bench import Bench
from benchmarks.figures import Outcome
from benchmarks.topic import dense, single


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario, and what people are told about it."""

    run: Callable[[Bench], Outcome]
    about: str
    is_long: bool = False
    """Whether it runs only when it is named."""


SCENARIOS: Final = {
    dense.NAME: Scenario(dense.run, "100 subscribers with an event type each, batches of 100 as fast as they go"),
    single.NAME: Scenario(single.run, "one subscriber, batches of 100 as fast as they go"),
}
