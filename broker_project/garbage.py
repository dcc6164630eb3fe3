"""How often a long-running process looks for garbage."""

import gc
from typing import Final

OBJECTS: Final = 10_000
"""New objects after which Python looks among them; a page in hand makes thousands that are no garbage."""
GENERATIONS: Final = 20


def leave_alone_what_is_loaded() -> None:
    """Look no more at what has been loaded so far: it stays."""
    gc.collect()
    gc.freeze()


def look_less_often() -> None:
    """Look at the rest less often too: a tenth of a delivery's CPU.

    Not where a request's body hangs in a cycle until somebody looks, as in the web process.
    """
    leave_alone_what_is_loaded()
    gc.set_threshold(OBJECTS, GENERATIONS, GENERATIONS)
