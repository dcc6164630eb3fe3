"""TOPIC: one line a subscriber, its deliveries one at a time, oldest first, unless it is CONCURRENT (behaviour 4)."""

import math
from collections.abc import Callable

from delivery.outcomes import Decision, Outcome
from delivery.retry import HOLDING, Verdict
from delivery.worker.buffer import InHand
from delivery.worker.consequences import further_of, verdict_on
from delivery.worker.judging import outcome_of, settlement_of
from delivery.worker.line import DrivenLine, Story, Strand
from delivery.worker.settlements import Settlement
from delivery.worker.steps import Ended, Hold, Read, Rest, Send, Sent
from delivery.worker.topic import next_ready


def topic_line(strand: Strand, chance: Callable[[], float]) -> Story:
    """Send one line's deliveries until it is held, or nothing more is due; at rest, go on when called.

    Of a CONCURRENT subscriber's line each strand does so (behaviour 4.13): what holds the line stops them all.
    """
    line = strand.line
    ended: Ended | None = None
    while True:
        delivery, ended = yield from next_ready(strand, ended)
        if delivery is None:
            yield Rest(ended)
            ended = None
            continue
        sent = yield Send(ended, delivery)
        ended = None
        if not isinstance(sent, Sent):
            continue  # it is no longer as it was read
        outcome = outcome_of(sent)
        verdict = verdict_on(line, delivery, outcome, chance=chance())
        ended = _settlement(line, delivery, sent, outcome, verdict)
        if verdict.decision in HOLDING and not line.is_apart:
            line.holds(delivery, _hold(delivery, outcome, verdict))
            continue
        line.passed(delivery)
        line.shortest_pause = min(line.shortest_pause, verdict.pause or math.inf)
        if verdict.decision is Decision.SUSPEND:
            yield Read(ended)  # what else is in hand may be of the subscription that is paused
            ended = None


def _settlement(line: DrivenLine, delivery: InHand, sent: Sent, outcome: Outcome, verdict: Verdict) -> Settlement:
    further = further_of(line, delivery, verdict.decision)
    settlement = settlement_of(line.id, delivery, sent, outcome, verdict, further=further)
    if settlement.unsent and line.gives_numbers:
        line.last_sequence -= 1
    return settlement


def _hold(delivery: InHand, outcome: Outcome, verdict: Verdict) -> Hold:
    """Return how long the line waits, and under which configuration."""
    assert verdict.pause is not None  # noqa: S101 - what is held waits
    return Hold(verdict.pause, str(outcome), delivery.destination.stamp)
