"""QUEUE: the protocol of a sender, which offers each message to one endpoint of its group (contract 6.4 to 6.6)."""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import NamedTuple

from delivery.http.transfer import RequestNotCompleted
from delivery.outcomes import QUEUE, Decision, Unreachable, decide, is_out_of_reach
from delivery.retry import MAX_PAUSE_SECONDS, Verdict, deferred_pause
from delivery.webhook.parts import Content, Destination, Outgoing
from delivery.worker.buffer import FairShare
from delivery.worker.line import ActiveLine, Slot, Story
from delivery.worker.steps import Ended, Reply, RequestSent, Rest, Send, Step
from delivery.worker.topic import next_from_buffer, outcome_of, to_settlement


class Endpoint(NamedTuple):
    """One of a group's subscriptions that may be sent to."""

    delivery_id: int
    destination: Destination

    @property
    def subscription_id(self) -> int:
        """Whose it is."""
        return self.destination.subscription_id


def asked_first(endpoints: Sequence[Endpoint], first_id: int | None) -> Sequence[Endpoint]:
    """Return those of which one is asked first: who had the request at an unclean end, otherwise any."""
    return [one for one in endpoints if one.delivery_id == first_id] or endpoints


@dataclass(frozen=True, slots=True)
class OutgoingGroup:
    """A message that one of a group of endpoints is to take (contract 6.4)."""

    id: int
    content: Content
    endpoints: Sequence[Endpoint]
    """Those that may be tried: neither ended, HELD nor inactive."""
    first_id: int | None
    """The delivery that goes first: its request was under way at an unclean end."""
    attempts: int
    """How many requests it has had, over all its endpoints."""
    uncertain: bool
    """Whether the outcome of any of them is unknown."""
    cycles: int
    """How often all its endpoints were tried in vain."""
    size: int
    is_deferred: bool
    callback_url: str = ""

    def may_be_tried(self, fair_share: FairShare) -> bool:
        """Whether one that is asked first has room for another that waits for it."""
        return any(not fair_share.is_full(one.subscription_id) for one in asked_first(self.endpoints, self.first_id))

    def in_turn(self, shuffle: Callable[[list[Endpoint]], object], fair_share: FairShare) -> list[Endpoint]:
        """Return the endpoints in the order in which they are tried: at random, crowded ones last."""
        endpoints = [*self.endpoints]
        shuffle(endpoints)
        of = len(endpoints)
        return sorted(
            endpoints, key=lambda one: (one.delivery_id != self.first_id, fair_share.place(one.subscription_id, of))
        )

    def delivery(self, endpoint: Endpoint, *, tried: int, uncertain: bool) -> Outgoing:
        """Return the delivery to an endpoint, after `tried` others in this cycle."""
        return Outgoing(
            endpoint.delivery_id,
            self.content,
            endpoint.destination,
            self.attempts + tried,
            None,
            uncertain,
            self.size,
            is_deferred=self.is_deferred,
            times_deferred=self.cycles,
            group_id=self.id,
            callback_url=self.callback_url,
        )


Shuffle = Callable[[list[Endpoint]], object]


def queue_line(slot: Slot, shuffle: Shuffle) -> Story:
    """Send messages of one sender as long as some are due; at rest, go on when called."""
    fair_share = slot.line.fair_share
    ended: Ended | None = None
    group: OutgoingGroup | None
    while True:
        take = partial(slot.take, lambda one: one.may_be_tried(fair_share))
        group, ended = yield from next_from_buffer(slot, ended, take)
        if group:
            slot.line.deferred_next = not group.is_deferred
            ended = yield from _offered(slot, group, ended, shuffle)
        else:
            yield Rest(ended)
            ended = None


def _offered(
    slot: Slot, group: OutgoingGroup, ended: Ended | None, shuffle: Shuffle
) -> Generator[Step, Reply, Ended | None]:
    """Try the group's endpoints in turn until one takes the message; return what is still to be settled.

    Where none does, and not all have ended, the group is tried again after a pause that grows with each cycle. A cycle
    leaves out those for which half of the slots wait in vain.
    """
    fair_share = slot.line.fair_share
    uncertain, ended_count, refused = group.uncertain, 0, 0
    left = group.in_turn(shuffle, fair_share)
    for tried in count():
        if slot.line.stopping:
            return ended
        delivery = group.delivery(left[0], tried=tried, uncertain=uncertain)
        sent = yield from _asked(slot.line, delivery, ended)
        if not isinstance(sent, RequestSent):  # something is no longer as it was read
            if tried:
                slot.line.cut_short.append(group.id)
            return None
        outcome = outcome_of(sent)
        decision = decide(outcome, QUEUE)
        left = [one for one in left[1:] if not fair_share.is_full(one.subscription_id)]
        ended_count += decision.final_status is not None
        refused += is_out_of_reach(outcome)
        again = None if left else _pause(group, ended=ended_count, refused=refused)
        ended = to_settlement(slot.line.id, delivery, sent, outcome, Verdict(decision, None), again=again)
        if decision is Decision.DELIVERED or not left:
            break
        uncertain |= isinstance(outcome, Unreachable) and outcome.was_sent
    return ended


def _pause(group: OutgoingGroup, *, ended: int, refused: int) -> float:
    """Return the seconds until the next cycle, by how many have ended and to how many nothing is sent."""
    is_hopeless = refused and ended + refused == len(group.endpoints)
    return MAX_PAUSE_SECONDS if is_hopeless else deferred_pause(group.cycles + 1)


def _asked(line: ActiveLine, delivery: Outgoing, ended: Ended | None) -> Generator[Step, Reply, Reply]:
    """Send a delivery; meanwhile the slot is one of those that wait for its subscription."""
    subscription_id, since = delivery.destination.subscription_id, time.monotonic()
    line.fair_share.join(subscription_id, since)
    sent = yield Send(ended, delivery)
    answered = isinstance(sent, RequestSent) and not isinstance(sent.answer.result, RequestNotCompleted)
    line.fair_share.leave(subscription_id, since, time.monotonic(), answered=answered)
    return sent
