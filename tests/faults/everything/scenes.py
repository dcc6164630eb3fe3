"""Where something is broken: the broker, the dice, and a note of when."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from broker_project.stack.supervisor import Child
from tests.faults.everything.works import Faults
from tests.faults.exchanges import Fault
from tests.faults.load import Load
from tests.real_broker import Broker


def dice(seed: str) -> Random:
    """Return what falls the same way each time."""
    return Random(seed)  # noqa: S311 - nothing is to be kept secret


@dataclass(slots=True)
class Scene:
    """A broker under load."""

    broker: Broker
    load: Load
    """What admins edit the subscribers of."""
    faults: Faults
    random: Random

    def process(self, name: str) -> Child:
        return self.broker.stack.supervisor[name]

    @contextmanager
    def fault(self, *, of_web: bool = False) -> Iterator[None]:
        """Break something inside: copies may only repeat what was under way then."""
        begun = time.monotonic()
        try:
            yield
        finally:
            fault = Fault(begun, time.monotonic())
            self.faults.all.append(fault)
            if of_web:
                self.faults.of_web.append(fault)

    def again_and_again(self, seconds: float, every: float, act: Callable[[], object]) -> None:
        """Do something, once at least, and again every so many seconds."""
        until = time.monotonic() + seconds
        act()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(every, left))
            act()
