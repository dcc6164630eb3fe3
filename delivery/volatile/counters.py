"""Count the outcomes of volatile messages: in memory, written to the database every second (contract 2.9)."""

import os
import threading
from collections import Counter
from multiprocessing.util import Finalize
from typing import Final, NamedTuple

import orjson
import structlog
from django.db import Error

from broker_project.core.db import forget_connection, rows
from delivery.models import VolatileOutcome

WRITE_SECONDS: Final = 1.0
"""A process that is killed loses the counts of this time."""
STOP_SECONDS: Final = 5.0

ACCEPTED: Final = "accepted"
COLUMNS: Final = (ACCEPTED, *map(str, VolatileOutcome))

ADD: Final = f"""
INSERT INTO delivery_volatilecount AS v (hour, event_type_id, subscription_id, {", ".join(COLUMNS)})
SELECT to_timestamp(hour), event_type_id, subscription_id,
       {", ".join(f"COALESCE(sum(number) FILTER (WHERE counted = '{one}'), 0)" for one in COLUMNS)}
  FROM json_to_recordset(%s::json)
    AS c (hour bigint, event_type_id bigint, subscription_id bigint, counted text, number bigint)
 GROUP BY hour, event_type_id, subscription_id
 ORDER BY hour, event_type_id, subscription_id
    ON CONFLICT (hour, event_type_id, subscription_id) DO UPDATE
   SET {", ".join(f"{one} = v.{one} + excluded.{one}" for one in COLUMNS)}
"""
"""Ordered, so that processes wait for each other's rows but never in a circle."""

log = structlog.get_logger(__name__)


class VolatileTally(NamedTuple):
    """What is counted separately."""

    hour: int
    """When the hour of publishing began, in seconds since 1970."""
    event_type_id: int
    subscription_id: int | None
    """None: the messages themselves."""


class VolatileCounters(threading.Thread):
    """A process's counts that are not written yet, and the thread that writes them."""

    def __init__(self) -> None:
        super().__init__(name="volatile-counters", daemon=True)
        self._counts: Counter[tuple[VolatileTally, str]] = Counter()
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def count(self, tally: VolatileTally, column: str) -> None:
        """Add one to a column; never waits for the database."""
        with self._lock:
            self._counts[tally, column] += 1

    def run(self) -> None:
        """Write every second, and at the end."""
        while not self._stopping.wait(WRITE_SECONDS):
            self.write()
        self.write()

    def stop(self) -> None:
        """Write the rest, if the database takes it soon."""
        self._stopping.set()
        self.join(STOP_SECONDS)

    def write(self) -> None:
        """Write the counts; what the database does not take now is kept for the next time."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        added = [{**tally._asdict(), "counted": column, "number": number} for (tally, column), number in counts.items()]
        try:
            rows(ADD, [orjson.dumps(added).decode()])
        except Error as failure:
            log.warning("volatile.not_counted_yet", reason=failure)
            with self._lock:
                self._counts.update(counts)
        finally:
            forget_connection()


_counters: dict[int, VolatileCounters] = {}
"""By process: threads do not survive a fork."""
_start_lock: Final = threading.Lock()


def get_counters() -> VolatileCounters:
    """Return this process's counters; started when first asked for, written when the process ends."""
    with _start_lock:
        if os.getpid() not in _counters:
            started = _counters[os.getpid()] = VolatileCounters()
            started.start()
            Finalize(None, stop, exitpriority=0)  # a web server's processes end without `atexit`
        return _counters[os.getpid()]


def stop() -> None:
    """Write what this process has counted; later counts start a new thread."""
    with _start_lock:
        if stopped := _counters.pop(os.getpid(), None):
            stopped.stop()
