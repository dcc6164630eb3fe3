"""One turn: claim lines, hand them to the event loop, wait for a moment (contract 4.14)."""

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
"""How long a turn drives its lines before it hands what is left to the next link; letting go and claiming again costs
a tenth of the deliveries at half of it."""


def run_lines(line_ids: Sequence[int], driver: EventLoop) -> list[int]:
    """Drive those of the lines that are due and free, for one turn; return those that have more work."""
    before = time.monotonic()
    claims = claim(line_ids[: driver.free_places()], worker=driver.worker)
    if not claims:
        return []
    run = Turn([taken.line_id for taken in claims], TURN_SECONDS)
    lines: list[ActiveLine] = []
    beside = driver.free_beside()
    for taken in claims:
        line = active_line(taken, run, before, under_way=driver.under_way, beside=beside, paces=driver.paces)
        lines.append(line)
        beside -= len(line.strands) - 1
    driver.take(lines)
    return run.wait()


def active_line(
    taken: Claim,
    run: Turn,
    renewed_at: float,
    *,
    under_way: int,
    beside: int = MAX_BESIDE,
    paces: RateLimiter | None = None,
) -> ActiveLine:
    """Return a claimed line with the stories it follows: a sender's has `under_way` of them, others what was claimed.

    One with a head has one, for a turn: what was not taken the last time may not be taken yet. Beside its first one
    none has more than `beside`: where a process has as much under way as it may, all lines go on with one.
    """
    wanted = under_way if taken.lane == Lane.QUEUE else 1 if taken.head_id else taken.strands
    strands = 1 + min(wanted - 1, beside)
    line = ActiveLine(taken, run, renewed_at, crowds=FairShare(strands), paces=paces or RateLimiter())
    line.strands = [Slot(line) for _ in range(strands)]
    for strand in line.strands:
        if taken.lane == Lane.QUEUE:
            strand.generator = queue_line(strand, random.shuffle)
        else:
            strand.generator = topic_line(strand, random.random)
    return line
