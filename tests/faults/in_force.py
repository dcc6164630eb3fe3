"""What was configured when, as somebody knows who changes it and sees only when each call began and ended."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Setting(Generic[Value]):
    """A value and the call that set it, on the monotonic clock."""

    value: Value
    begun: float
    ended: float


@dataclass(slots=True)
class InForce(Generic[Value]):
    """A setting through time; while a call changes it, either value may be in force."""

    first: Value
    _later: list[Setting[Value]] = field(default_factory=list)

    @property
    def now(self) -> Value:
        return self._later[-1].value if self._later else self.first

    @contextmanager
    def changing(self, value: Value) -> Iterator[None]:
        """Note that this is set meanwhile."""
        begun = time.monotonic()
        yield
        self._later.append(Setting(value, begun, time.monotonic()))

    def has_become(self, value: Value, *, since: float) -> None:
        """Note that this was set by a call that began then and has ended now."""
        self._later.append(Setting(value, since, time.monotonic()))

    def between(self, begun: float, ended: float) -> set[Value]:
        """Return every value that may have been in force at some time between these two."""
        always = float("inf")
        settings = [Setting(self.first, -always, -always), *self._later, Setting(self.now, always, always)]
        return {one.value for one, following in pairwise(settings) if one.begun <= ended and begun <= following.ended}
