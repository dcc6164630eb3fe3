"""How Python behaves in a process that runs for long: garbage, when threads give way, how many files are open."""

import gc
import resource
import sys
from typing import Final

GIVE_WAY_SECONDS: Final = 0.0005
"""How long a thread may go on while others are ready. With Python's own 5 ms, whoever hears from the database may
wait that long: measured, 6 % of a single line's pace and a third of what the slowest publishers wait."""
OBJECTS: Final = 10_000
"""New objects after which Python looks for garbage among them; a page in hand makes thousands that are none."""
GENERATIONS: Final = 20
OLDEST_GENERATION: Final = 1
"""How many collections of the younger ones Flower waits before it looks at all that has lived for long."""


def settle_in() -> None:
    """Let threads give way early, and look no more for garbage in what has been loaded so far: it stays."""
    sys.setswitchinterval(GIVE_WAY_SECONDS)
    gc.collect()
    gc.freeze()


def open_as_many_files_as_allowed() -> None:
    """Let there be as many connections as the server takes; by default a process has 1,024 files."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def look_for_garbage_less_often() -> None:
    """Save a tenth of a delivery's CPU.

    Not where a request's body hangs in a cycle until somebody looks, as in the web process.
    """
    gc.set_threshold(OBJECTS, GENERATIONS, GENERATIONS)


def look_for_garbage_more_often() -> None:
    """Keep Flower from growing for an hour: a task that it forgets is garbage in a cycle, and long lived by then."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, OLDEST_GENERATION)
