"""What a strand sends next of its subscriber's deliveries: in its time, and after its script."""

import time
from collections.abc import Generator
from typing import Final

from delivery.webhook.transform import TransformRefused, transformed, withheld
from delivery.worker.buffer import InHand
from delivery.worker.line import Strand
from delivery.worker.steps import Ended, Read, Reply, Step, Transform, Wait
from delivery.worker.taking import next_in_hand
from subscriptions.scripting.jobs import Failed, Lost, Made

MOMENT_SECONDS: Final = 0.1
"""For less than that it does not pay to read what else there is."""

Ready = Generator[Step, Reply, tuple[InHand | None, Ended | None]]
"""Returns what is sent, None where nothing is, and what is still to be settled."""


def next_ready(strand: Strand, ended: Ended | None) -> Ready:
    """Return what is sent next; None where the strand stops."""
    linger = False
    delivery: InHand | None
    while True:
        delivery, ended = yield from next_in_hand(strand, ended, lambda: _taken(strand), linger=linger)
        if delivery is None:
            return None, ended
        if delivery.destination.spacing:
            delivery, ended = yield from _in_its_time(strand, delivery, ended)
            linger = delivery is None  # read just now
        if delivery and delivery.destination.script:
            delivery, ended = yield from _transformed(strand, delivery, ended)
            linger = ended is None  # no process was free, or no room for what it made: not at once again
        if delivery:
            return delivery, ended


def _taken(strand: Strand) -> InHand | None:
    """Take what goes next; where no order counts, rather what has not to wait for its rate.

    None too where the line has to be let go first. A retry line does not linger for what waits for its rate.
    """
    line, now = strand.line, time.monotonic()
    taken: InHand | None = None
    if not line.gives_numbers:
        taken = strand.take(lambda one: line.may_try(one) and not line.paces.wait(one.destination, now))
    taken = taken or strand.take(line.may_try)
    if taken and not line.is_as_claimed(taken.destination):
        line.is_outdated = True
        return None
    if taken:
        line.tries(taken)
    elif line.is_apart:
        line.hold = line.hold_at_rest()
    return taken


def _in_its_time(strand: Strand, delivery: InHand, ended: Ended | None) -> Ready:
    """Wait until the delivery's subscription may be sent (behaviour 1.4).

    If that is long after the turn, the line waits with it, unless others may go before it: they go on without it. There
    one strand waits for a subscription, not all of them: what they left behind would wait for them.
    """
    line, destination = strand.line, delivery.destination
    while seconds := line.paces.wait(destination, now := time.monotonic()):
        if line.waits_for(delivery):
            if not line.has_time_for(seconds):
                line.waits_with(delivery, seconds)
                return None, ended
        elif not line.has_time_for(seconds) or (seconds > MOMENT_SECONDS and line.is_paced(destination)):
            line.leave_out(delivery, now + seconds)
            yield Read(ended)
            return None, None
        strand.paced_for = destination.subscription_id
        yield Wait(ended, delivery, seconds)
        strand.paced_for, ended = None, None
        if line.stopping or line.is_held:
            return None, None
    line.paces.ask(destination, time.monotonic())
    return delivery, ended


def _transformed(strand: Strand, delivery: InHand, ended: Ended | None) -> Ready:
    """Run the delivery's script."""
    line = strand.line
    result = yield Transform(ended, delivery)
    if isinstance(result, Made) and not line.stopping:
        try:
            return transformed(delivery, result), None
        except TransformRefused as refused:
            result = Failed(str(refused))
    if not isinstance(result, Failed | Lost):
        return None, None  # there was no time for it
    line.passed(delivery)
    return None, withheld(line.id, delivery, result)
