"""TOPIC: one line a subscriber, its deliveries one at a time, oldest first (behaviour 4)."""

from collections.abc import Callable, Generator

from delivery.lines.hands import InHand
from delivery.lines.judging import gives_number_back, outcome_of, settlement_of
from delivery.lines.steps import Ended, Hold, Reply, Rest, Send, Sent, Step, Transform
from delivery.lines.strands import DrivenLine, Story, Strand
from delivery.lines.taking import next_in_hand
from delivery.lines.transforms import TransformRefused, transformed, withheld
from delivery.rules.outcomes import Answered, Decision, Outcome, RetryRules, decide
from delivery.rules.pauses import aside_pause, hold_pause
from subscriptions.scripts.jobs import Failed, Lost, Made


def topic_line(strand: Strand, rules: RetryRules, chance: Callable[[], float]) -> Story:
    """Send one subscriber's deliveries in order; stop where the line is held, or nothing more is due."""
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
        decision = decide(outcome, rules)
        pause = aside_pause(delivery.times_set_aside + 1) if decision is Decision.SET_ASIDE else None
        ended = settlement_of(line.id, delivery, sent, outcome, decision, pause=pause)
        if gives_number_back(delivery, outcome):
            line.last_sequence -= 1
        if decision is Decision.HOLD_THE_LINE:
            return Rest(ended, _hold(line, delivery, outcome, chance()))
        line.passed(delivery)


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


def _hold(line: DrivenLine, delivery: InHand, outcome: Outcome, chance: float) -> Hold:
    line.head_id = delivery.id
    line.failures += 1
    retry_after = outcome.retry_after if isinstance(outcome, Answered) else None
    pause = hold_pause(line.failures, retry_after=retry_after, chance=chance)
    return Hold(pause, str(outcome), delivery.destination.stamp)
