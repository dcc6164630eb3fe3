"""Tune Python for long-running processes: garbage collection, thread switching, charsets, open files."""

import codecs
import encodings
import gc
import pkgutil
import resource
import sys
import time
from collections.abc import Callable
from encodings.aliases import aliases
from typing import Final

SWITCH_SECONDS: Final = 0.0005
"""How long a thread may run while others are ready. Python's 5 ms delay every thread that waits for the database:
measured, they cost 6 % of a single line's rate and a third of the slowest publishers' time."""
USUAL: Final = gc.get_threshold()
"""Python's own thresholds."""
LOADING_OBJECTS: Final = 100_000
"""New objects before a collection while a program is loaded, which leaves no garbage."""
YOUNG_OBJECTS: Final = 10_000
"""New objects before a collection: a page of deliveries makes thousands that are not garbage."""
COLLECTIONS: Final = 20
"""Collections of one generation before the next older one is collected too."""
FLOWER_OLD_COLLECTIONS: Final = 1
CHARSETS: Final = frozenset({*aliases, *(module.name for module in pkgutil.iter_modules(encodings.__path__))})
"""The names of Python's own."""
REST_SHARE: Final = 3
"""A thread rests three times as long as it has computed. While 200 connections asked for a page as fast as they could,
the p95 of publishing was 160 ms without such rests, and is below 50 ms with them."""
MAX_REST_SECONDS: Final = 0.5
"""The longest rest: a page that takes long must not keep the next one waiting for seconds."""


def load_without_collecting() -> None:
    """Look for garbage hardly ever from now on: a sixth of the CPU time of a start goes by that."""
    gc.set_threshold(LOADING_OBJECTS)


def tune_runtime() -> None:
    """Let threads switch early, ask for known charsets only, and exempt what is loaded from garbage collection."""
    sys.setswitchinterval(SWITCH_SECONDS)
    codecs.unregister(encodings.search_function)
    codecs.register(_known_charset)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*USUAL)


def _known_charset(name: str) -> codecs.CodecInfo | None:
    """Return one of Python's charsets. Python would remember each unknown name for ever, and clients can invent any."""
    plain = encodings.normalize_encoding(name)
    return encodings.search_function(name) if {plain, plain.replace(".", "_")} & CHARSETS else None


def sparingly(act: Callable[[], None]) -> None:
    """Act, then let this thread rest, so that the others get most of Python's time."""
    began = time.thread_time()
    act()
    time.sleep(min(REST_SHARE * (time.thread_time() - began), MAX_REST_SECONDS))


def raise_open_files_limit() -> None:
    """Allow as many open files as the hard limit does; the default of 1,024 is below the server's connections."""
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


def collect_garbage_less_often() -> None:
    """Save a tenth of the CPU of a delivery.

    Not for the web process, where request bodies stay in reference cycles until they are collected.
    """
    gc.set_threshold(YOUNG_OBJECTS, COLLECTIONS, COLLECTIONS)


def collect_garbage_more_often() -> None:
    """Keep Flower from growing: a task that it forgets is an old object in a reference cycle."""
    gc.collect()
    gc.freeze()
    young, middle, _ = USUAL
    gc.set_threshold(young, middle, FLOWER_OLD_COLLECTIONS)
