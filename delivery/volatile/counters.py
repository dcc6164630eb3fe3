"""Counting what becomes of volatile messages: in memory, written down every second (contract 2.9)."""

import os
import threading
from collections import Counter, defaultdict
from multiprocessing.util import Finalize
from typing import Final, NamedTuple

import orjson
import structlog
from django.db import Error

from broker_project.core.db import forget_connection, rows
from delivery.models import VolatileOutcome

WRITE_SECONDS: Final = 1.0
"""As much of the counts is lost with a process that is killed."""
STOP_SECONDS: Final = 5.0

ACCEPTED: Final = "accepted"
COLUMNS: Final = (ACCEPTED, *map(str, VolatileOutcome))

ADD: Final = f"""
INSERT INTO delivery_volatilecount AS v (hour, event_type_id, subscription_id, {", ".join(COLUMNS)})
SELECT to_timestamp(hour), event_type_id, subscription_id, {", ".join(COLUMNS)}
  FROM json_to_recordset(%s::json)
    AS c (hour bigint, event_type_id bigint, subscription_id bigint, {", ".join(f"{one} bigint" for one in COLUMNS)})
 ORDER BY hour, event_type_id, subscription_id
    ON CONFLICT (hour, event_type_id, subscription_id) DO UPDATE
   SET {", ".join(f"{one} = v.{one} + excluded.{one}" for one in COLUMNS)}
"""
"""In an order that is the same for all processes: they wait for each other's rows and never in a circle."""

log = structlog.get_logger(__name__)


class VolatileTally(NamedTuple):
    """Of what it is counted."""

    hour: int
    """Its beginning, in seconds since 1970."""
    event_type_id: int
    subscription_id: int | None
    """None: of the messages themselves."""


class VolatileCounters(threading.Thread):
    """A process's counts that are not written down yet, and the thread that does so."""

    def __init__(self) -> None:
        super().__init__(name="tallies", daemon=True)
        self._counts: dict[VolatileTally, Counter[str]] = defaultdict(Counter)
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def count(self, of: VolatileTally, column: str, times: int = 1) -> None:
        """Count something; never waits for the database."""
        with self._lock:
            self._counts[of][column] += times

    def run(self) -> None:
        """Write down what there is every second, and at the end."""
        while not self._stopping.wait(WRITE_SECONDS):
            self.write()
        self.write()

    def stop(self) -> None:
        """Write down the rest, if the database takes it soon."""
        self._stopping.set()
        self.join(STOP_SECONDS)

    def write(self) -> None:
        """Write down what there is; what the database does not take now it is given the next time."""
        with self._lock:
            counts, self._counts = self._counts, defaultdict(Counter)
        if not counts:
            return
        try:
            rows(ADD, [orjson.dumps([_row(of, counted) for of, counted in counts.items()]).decode()])
        except Error as failure:
            log.warning("volatile.not_counted_yet", reason=failure)
            self._take_back(counts)
        finally:
            forget_connection()

    def _take_back(self, counts: dict[VolatileTally, Counter[str]]) -> None:
        with self._lock:
            for of, counted in counts.items():
                self._counts[of] += counted


def _row(of: VolatileTally, counted: Counter[str]) -> dict[str, int | None]:
    return of._asdict() | {column: counted[column] for column in COLUMNS}


_tallies: dict[int, VolatileCounters] = {}
"""By process: no thread survives a fork."""
_start_lock: Final = threading.Lock()


def running_counters() -> VolatileCounters:
    """Return this process's counts; made when first asked for, and written down when it ends."""
    with _start_lock:
        if os.getpid() not in _tallies:
            started = _tallies[os.getpid()] = VolatileCounters()
            started.start()
            Finalize(None, stop, exitpriority=0)  # a web server's processes end without `atexit`
        return _tallies[os.getpid()]


def stop() -> None:
    """Write down what this process has counted; who counts after that begins anew."""
    with _start_lock:
        if stopped := _tallies.pop(os.getpid(), None):
            stopped.stop()
