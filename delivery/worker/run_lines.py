"""One turn: claim lines, buffer them to the event loop, wait for a moment (contract 4.14)."""

import random
import time
from collections.abc import Sequence
from typing import Final

from delivery.dispatch.claim import Claim, claim
from delivery.models import Lane
from delivery.worker.buffer import FairShare, RateLimiter
from delivery.worker.event_loop import MAX_BESIDE, EventLoop
from delivery.worker.line import ActiveLine, Slot
from delivery.worker.queue import queue_line
from delivery.worker.steps import Turn
from delivery.worker.topic import topic_line

TURN_SECONDS: Final = 1.0
"""How long a turn drives its lines before it buffers what is left to the next link; letting go and claiming again costs
a tenth of the deliveries at half of it."""


def run_lines(line_ids: Sequence[int], event_loop: EventLoop) -> list[int]:
    """Drive those of the lines that are due and free, for one turn; return those that have more work."""
    before = time.monotonic()
    claims = claim(line_ids[: event_loop.free_places()], worker=event_loop.worker)
    if not claims:
        return []
    run = Turn([taken.line_id for taken in claims], TURN_SECONDS)
    lines: list[ActiveLine] = []
    beside = event_loop.free_beside()
    for taken in claims:
        line = active_line(
            taken,
            run,
            before,
            queue_max_in_flight=event_loop.queue_max_in_flight,
            beside=beside,
            rate_limiter=event_loop.rate_limiter,
        )
        lines.append(line)
        beside -= len(line.slots) - 1
    event_loop.take(lines)
    return run.wait()


def active_line(
    taken: Claim,
    run: Turn,
    renewed_at: float,
    *,
    queue_max_in_flight: int,
    beside: int = MAX_BESIDE,
    rate_limiter: RateLimiter | None = None,
) -> ActiveLine:
    """Return a claimed line with its slots: `queue_max_in_flight` of a QUEUE sender, others what was claimed.

    One with a head has one, for a turn: what was not taken the last time may not be taken yet. Beside its first one
    none has more than `beside`: where a process has as much under way as it may, all lines go on with one.
    """
    wanted = queue_max_in_flight if taken.lane == Lane.QUEUE else 1 if taken.head_id else taken.concurrency
    slots = 1 + min(wanted - 1, beside)
    line = ActiveLine(taken, run, renewed_at, fair_share=FairShare(slots), rate_limiter=rate_limiter or RateLimiter())
    line.slots = [Slot(line) for _ in range(slots)]
    for slot in line.slots:
        if taken.lane == Lane.QUEUE:
            slot.generator = queue_line(slot, random.shuffle)
        else:
            slot.generator = topic_line(slot, random.random)
    return line
