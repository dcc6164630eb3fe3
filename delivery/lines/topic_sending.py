"""TOPIC: one line a subscriber, its deliveries one at a time, oldest first (behaviour 4)."""

from collections.abc import Callable, Generator

from delivery.lines.consequences import further_of, verdict_on
from delivery.lines.hands import InHand
from delivery.lines.judging import outcome_of, settlement_of
from delivery.lines.steps import Ended, Hold, Read, Reply, Rest, Send, Sent, Step, Transform
from delivery.lines.strands import DrivenLine, Story, Strand
from delivery.lines.taking import next_in_hand
from delivery.lines.transforms import TransformRefused, transformed, withheld
from delivery.rules.outcomes import Decision, Outcome
from delivery.rules.retry_policies import Verdict
from delivery.settling.settlements import Settlement
from subscriptions.scripts.jobs import Failed, Lost, Made


def topic_line(strand: Strand, chance: Callable[[], float]) -> Story:
    """Send one line's deliveries in order; stop where it is held, or nothing more is due."""
    line = strand.line
    ended: Ended | None = None
    while True:
        delivery, ended = yield from _next_ready(strand, ended)
        if delivery is None:
            return Rest(ended)
        sent = yield Send(ended, delivery)
        ended = None
        if not isinstance(sent, Sent):
            continue  # it is no longer as it was read
        outcome = outcome_of(sent)
        verdict = verdict_on(line, delivery, outcome, chance=chance())
        ended = _settlement(line, delivery, sent, outcome, verdict)
        if verdict.decision is Decision.HOLD_THE_LINE:
            return Rest(ended, _hold(line, delivery, outcome, verdict))
        line.passed(delivery)
        if verdict.decision is Decision.SUSPEND:
            yield Read(ended)  # what else is in hand may be of the subscription that is paused
            ended = None


def _next_ready(strand: Strand, ended: Ended | None) -> Generator[Step, Reply, tuple[InHand | None, Ended | None]]:
    """Return what is sent next, after its script if it has one."""
    linger = False
    delivery: InHand | None
    while True:
        delivery, ended = yield from next_in_hand(strand, ended, linger=linger)
        if delivery is None or not delivery.destination.script:
            return delivery, ended
        delivery, ended = yield from _transformed(strand.line, delivery, ended)
        if delivery:
            return delivery, ended
        linger = ended is None  # no process was free, or no room for what it made: not at once again


def _transformed(
    line: DrivenLine, delivery: InHand, ended: Ended | None
) -> Generator[Step, Reply, tuple[InHand | None, Ended | None]]:
    """Run the delivery's script; return what is sent, None where nothing is, and what is still to be settled."""
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


def _settlement(line: DrivenLine, delivery: InHand, sent: Sent, outcome: Outcome, verdict: Verdict) -> Settlement:
    further = further_of(line, delivery, verdict.decision)
    settlement = settlement_of(line.id, delivery, sent, outcome, verdict, further=further)
    if settlement.unsent and line.gives_numbers:
        line.last_sequence -= 1
    return settlement


def _hold(line: DrivenLine, delivery: InHand, outcome: Outcome, verdict: Verdict) -> Hold:
    assert verdict.pause is not None  # noqa: S101 - what is held waits
    line.head_id = delivery.id
    line.failures += 1
    return Hold(verdict.pause, str(outcome), delivery.destination.stamp)
