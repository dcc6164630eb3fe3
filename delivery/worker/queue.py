"""QUEUE: each message to one endpoint of its group, several messages at a time (behaviour 6.4 to 6.6)."""

import time
from collections.abc import Callable, Generator
from functools import partial
from itertools import count

from delivery.http.transfer import RequestNotCompleted
from delivery.outcomes import QUEUE, Decision, Unreachable, decide, is_out_of_reach
from delivery.pauses import LONGEST_PAUSE_SECONDS, aside_pause
from delivery.retry import Verdict
from delivery.worker.buffer import InHand
from delivery.worker.groups import Endpoint, GroupInHand
from delivery.worker.judging import outcome_of, settlement_of
from delivery.worker.line import DrivenLine, Story, Strand
from delivery.worker.steps import Ended, Reply, Rest, Send, Sent, Step
from delivery.worker.taking import next_in_hand

Shuffle = Callable[[list[Endpoint]], object]


def queue_line(strand: Strand, shuffle: Shuffle) -> Story:
    """Send messages of one sender as long as some are due; at rest, go on when called."""
    crowds = strand.line.crowds
    ended: Ended | None = None
    group: GroupInHand | None
    while True:
        take = partial(strand.take, lambda one: one.may_be_tried(crowds))
        group, ended = yield from next_in_hand(strand, ended, take)
        if group:
            strand.line.aside_next = not group.is_aside
            ended = yield from _offered(strand, group, ended, shuffle)
        else:
            yield Rest(ended)
            ended = None


def _offered(
    strand: Strand, group: GroupInHand, ended: Ended | None, shuffle: Shuffle
) -> Generator[Step, Reply, Ended | None]:
    """Try the group's endpoints in turn until one takes the message; return what is still to be settled.

    Where none does, and not all have ended, the group is tried again after a pause that grows with each cycle. A cycle
    leaves out those for which half of the strands wait in vain.
    """
    crowds = strand.line.crowds
    uncertain, ended_count, refused = group.uncertain, 0, 0
    left = group.in_turn(shuffle, crowds)
    for tried in count():
        if strand.line.stopping:
            return ended
        delivery = group.delivery(left[0], tried=tried, uncertain=uncertain)
        sent = yield from _asked(strand.line, delivery, ended)
        if not isinstance(sent, Sent):  # something is no longer as it was read
            if tried:
                strand.line.cut_short.append(group.id)
            return None
        outcome = outcome_of(sent)
        decision = decide(outcome, QUEUE)
        left = [one for one in left[1:] if not crowds.are_full(one.subscription_id)]
        ended_count += decision.final_status is not None
        refused += is_out_of_reach(outcome)
        again = None if left else _pause(group, ended=ended_count, refused=refused)
        ended = settlement_of(strand.line.id, delivery, sent, outcome, Verdict(decision, None), again=again)
        if decision is Decision.DELIVERED or not left:
            break
        uncertain |= isinstance(outcome, Unreachable) and outcome.was_sent
    return ended


def _pause(group: GroupInHand, *, ended: int, refused: int) -> float:
    """Return the seconds until the next cycle, by how many have ended and to how many nothing is sent."""
    is_hopeless = refused and ended + refused == len(group.endpoints)
    return LONGEST_PAUSE_SECONDS if is_hopeless else aside_pause(group.cycles + 1)


def _asked(line: DrivenLine, delivery: InHand, ended: Ended | None) -> Generator[Step, Reply, Reply]:
    """Send a delivery; meanwhile the strand is one of those that wait for its subscription."""
    subscription_id, since = delivery.destination.subscription_id, time.monotonic()
    line.crowds.join(subscription_id, since)
    sent = yield Send(ended, delivery)
    answered = isinstance(sent, Sent) and not isinstance(sent.answer.result, RequestNotCompleted)
    line.crowds.leave(subscription_id, since, time.monotonic(), answered=answered)
    return sent
