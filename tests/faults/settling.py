"""How long answers wait to be stored, and so what a fault may have come upon though it had been answered."""

import time
from collections.abc import Collection, Iterable
from typing import Final

from tests.faults.exchanges import SETTLE_SECONDS, Fault
from tests.real_broker import Broker

MOST_SECONDS: Final = 5.0
"""However busy the machine is: a broker that takes longer is at fault itself."""
ROOM: Final = 2
"""By how much those may have waited longer that a fault cut off, of whom the books say nothing."""

WAITED = """
    SELECT extract(epoch FROM answered)::float8, extract(epoch FROM stored)::float8
      FROM (SELECT attempt.started_at + attempt.duration_ms * interval '1 ms' AS answered,
                   delivery.finished_at AS stored
              FROM delivery_delivery delivery
              JOIN delivery_attempt attempt ON attempt.delivery_id = delivery.id AND attempt.number = delivery.attempts
             WHERE delivery.status = 'DELIVERED' AND attempt.started_at >= to_timestamp(%(since)s)) ended
     WHERE stored - answered > interval '0.5 seconds'
"""


def settling_seconds(broker: Broker, since: float, faults: Collection[Fault]) -> float:
    """Return within how many seconds the broker has stored answers, as its books say; `since` is a monotonic time."""
    monotonic = time.monotonic() - time.time()
    books = broker.ask(WAITED, since=since - monotonic)
    return stored_within([(answered + monotonic, stored + monotonic) for answered, stored in books], faults)


def stored_within(waits: Iterable[tuple[float, float]], faults: Collection[Fault]) -> float:
    """Return within how many seconds what was answered was stored, with room, by the waits while nothing was broken."""
    calm = (
        stored - answered
        for answered, stored in waits
        if not any(fault.begun <= stored and answered <= fault.ended for fault in faults)
    )
    return min(max(ROOM * max(calm, default=0.0), SETTLE_SECONDS), MOST_SECONDS)
