"""Random faults under all kinds of work at once, for as long as one likes."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from tests.faults.everything.gathering import Everything
from tests.faults.everything.plans import Fault, Step, steps
from tests.faults.everything.scenes import Scene, dice
from tests.faults.everything.surviving import scene_of

MINUTE = 60.0
THREADS = ThreadPoolExecutor(2)
"""They outlive every broker: a process that a thread has started ends with that thread, as it would with ours."""


@dataclass(slots=True)
class Storm:
    """Breaks one thing after the other by the seed, and says each minute what it did."""

    everybody: Everything
    seed: int
    say: Callable[[str], None]
    happened: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    problems: list[str] = field(default_factory=list)
    """What could not be broken, or not be mended."""
    _said: list[str] = field(default_factory=list)
    """What has happened since the last time that something was said."""

    def rage(self, seconds: float) -> None:
        """Go on for so long."""
        began = told = time.monotonic()
        for step in steps(self.seed):
            left = began + seconds - time.monotonic()
            if left <= step.after:
                time.sleep(max(left, 0.0))
                break
            time.sleep(step.after)
            self._break(step)
            if time.monotonic() - told >= MINUTE:
                told = time.monotonic()
                self.tell(told - began)
        self.tell(time.monotonic() - began)

    def tell(self, elapsed: float) -> None:
        """Say what has happened since the last time, and how much each kind has done by now."""
        done = ", ".join(f"{kind} {count}" for kind, count in self.everybody.done().items())
        broken = "; ".join(self._said) or "nothing"
        self.say(f"{elapsed / MINUTE:.0f} min, step {self.steps}: {broken}. Done so far: {done}")
        self._said.clear()
        self.everybody.forget_requests()

    def _break(self, step: Step) -> None:
        self.steps += 1
        self._said.append(str(step))
        self.happened.update(fault.breakage.name for fault in step.faults)
        scene = scene_of(self.everybody, dice(""))
        for happening in [THREADS.submit(happen, scene, fault) for fault in step.faults]:
            if problem := happening.exception():
                self.problems.append(f"{step}: {problem!r}")
                self._said.append(f"that failed: {problem!r}")


def happen(scene: Scene, fault: Fault) -> None:
    """Break one thing; whom it hits the fault's own seed decides."""
    fault.breakage.happen(replace(scene, random=dice(fault.seed)), fault.seconds)
