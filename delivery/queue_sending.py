"""QUEUE: each message to one endpoint of its group, several messages at a time (behaviour 6.4 to 6.6)."""

from collections.abc import Callable, Generator

from delivery.groups import Endpoint, GroupInHand
from delivery.judging import outcome_of, settlement_of
from delivery.lines import Story, Strand
from delivery.outcomes import QUEUE, Decision, Unreachable, decide
from delivery.pauses import aside_pause
from delivery.steps import Ended, Reply, Rest, Send, Sent, Step
from delivery.taking import next_in_hand

Shuffle = Callable[[list[Endpoint]], object]


def queue_line(strand: Strand, shuffle: Shuffle) -> Story:
    """Send messages of one sender as long as some are due; at rest, go on when called."""
    ended: Ended | None = None
    group: GroupInHand | None
    while True:
        group, ended = yield from next_in_hand(strand, ended)
        if group:
            strand.group_ids.append(group.id)
            strand.line.aside_next = not group.is_aside
            ended = yield from _offered(strand, group, ended, shuffle)
        else:
            yield Rest(ended)
            ended = None


def _offered(
    strand: Strand, group: GroupInHand, ended: Ended | None, shuffle: Shuffle
) -> Generator[Step, Reply, Ended | None]:
    """Try the group's endpoints in turn until one takes the message; return what is still to be settled.

    Where none does, and not all have ended, the group is tried again after a pause that grows with each cycle.
    """
    uncertain = group.uncertain
    endpoints = group.in_turn(shuffle)
    for tried, endpoint in enumerate(endpoints):
        if strand.line.stopping:
            return ended
        delivery = group.delivery(endpoint, tried=tried, uncertain=uncertain)
        sent = yield Send(ended, delivery)
        if not isinstance(sent, Sent):
            return None  # something is no longer as it was read
        outcome = outcome_of(sent)
        decision = decide(outcome, QUEUE)
        again = aside_pause(group.cycles + 1) if endpoint is endpoints[-1] else None
        ended = settlement_of(strand.line.id, delivery, sent, outcome, decision, again=again)
        if decision is Decision.DELIVERED:
            return ended
        uncertain |= isinstance(outcome, Unreachable) and outcome.was_sent
    return ended
