"""The paths by which filters of one event type or pattern are looked up: those that were met, up to so many."""

from collections.abc import Mapping
from threading import Lock
from typing import Final

MOST_PATHS: Final = 32
"""So many paths are looked up; where an event type's filters compare more of them, the rest is evaluated."""
PATIENCE: Final = 64
"""Once in so many look-ups that met other paths one of them takes the place of the one that was met least lately."""


class LearnedPaths:
    """Paths and when each was met last, counted in look-ups that met others beside them."""

    def __init__(self) -> None:
        self.paths: tuple[str, ...] = ()
        """Sorted."""
        self._met: dict[str, int] = {}
        self._crowded = 0
        self._lock = Lock()

    def meet(self, counts: Mapping[str, int]) -> bool:
        """Take note of the paths that a look-up met, each so many times; tell whether there are new ones to look up."""
        with self._lock:
            return self._note(counts)

    def _note(self, counts: Mapping[str, int]) -> bool:
        others = {path: count for path, count in counts.items() if path not in self._met}
        self._crowded += bool(others)
        self._met.update(dict.fromkeys(counts.keys() & self._met.keys(), self._crowded))
        room = MOST_PATHS - len(self._met)
        if others and not room and self._crowded % PATIENCE == 0:
            del self._met[min(self._met, key=lambda path: (self._met[path], path))]
            room = 1
        chosen = sorted(others, key=lambda path: (-others[path], path))[:room]
        self._met.update(dict.fromkeys(chosen, self._crowded))
        self.paths = tuple(sorted(self._met))
        return bool(chosen)
