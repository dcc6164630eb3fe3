"""QUEUE: the protocol of a sender, which offers each message to one endpoint of its group (contract 6.3 to 6.6)."""

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, LiteralString, NamedTuple

from broker_project.core import boot_clock
from broker_project.core.db import Arguments, Rows, rows, rows_of_each
from delivery.callbacks.address import TOKENS, CallbackTerms, callback_addresses
from delivery.dispatch.parked_groups import park, postpone
from delivery.dispatch.turn_floors import GROUP_WAITS
from delivery.limits import CUT_SHORT_SECONDS, MAX_CRASHES, REFUSED_GROUP_SECONDS, UNADDRESSED_SECONDS
from delivery.outcomes import QUEUE, Unreachable, decide, is_out_of_reach
from delivery.retry import MAX_PAUSE_SECONDS, RetryDecision, deferred_pause
from delivery.webhook.content import Content, contents_of
from delivery.webhook.destination import Destination, destinations_of
from delivery.webhook.request import Outgoing
from delivery.worker.buffer import (
    DEFERRED,
    FRESH,
    BodyBudget,
    Buffer,
    GroupRow,
    Page,
    PageRequest,
    SlotShares,
    charged,
    page_of,
)
from delivery.worker.line import ActiveLine
from delivery.worker.slots import Reply, RequestSent, Rest, Send, Settlement, Slot, Step, Story
from delivery.worker.topic import (
    is_isolated,
    is_poison,
    next_from_buffer,
    outcome_of,
    settlement_of,
    to_settlement,
)

GROUP: Final = "g.id, g.message_id, g.delivery_ids, g.size, g.cycles, g.attempts, g.uncertain, g.first_id"

PAGES: Final = f"""
WITH wanted AS MATERIALIZED (
  SELECT w.*
    FROM unnest(%(line_id)s::bigint[], %(epoch)s::bigint[], %(capacity)s::int[]) AS w (line_id, epoch, capacity)
    JOIN delivery_line l ON l.id = w.line_id AND l.epoch = w.epoch
     FOR KEY SHARE OF l SKIP LOCKED),
page AS MATERIALIZED (
  SELECT w.line_id, 1 AS part, f.* FROM wanted w CROSS JOIN LATERAL (
    SELECT {GROUP} FROM delivery_queuegroup g
     WHERE {GROUP_WAITS.format("w.line_id")} AND g.id <> ALL (%(busy)s::bigint[])
     ORDER BY g.line_id, g.id LIMIT w.capacity) f
  UNION ALL
  SELECT w.line_id, 2, a.* FROM wanted w CROSS JOIN LATERAL (
    SELECT {GROUP} FROM delivery_queuegroup g
     WHERE g.line_id = w.line_id AND g.due_at <= (SELECT clock_timestamp()) AND g.id <> ALL (%(busy)s::bigint[])
     ORDER BY g.due_at, g.id LIMIT w.capacity) a),
forgotten AS (
  DELETE FROM delivery_pageread p USING wanted w WHERE p.line_id = ANY (ARRAY[w.line_id]) AND p.epoch = w.epoch),
noted AS (
  INSERT INTO delivery_pageread (line_id, epoch, delivery_ids)
  SELECT line_id, w.epoch, array_agg(id) FROM (
    SELECT line_id, unnest(delivery_ids) AS id FROM page
    UNION ALL
    SELECT g.line_id, unnest(g.delivery_ids) FROM delivery_queuegroup g
     WHERE g.id = ANY (%(busy)s::bigint[]) AND g.line_id = ANY (ARRAY(SELECT line_id FROM wanted))) i
    JOIN wanted w USING (line_id)
   GROUP BY line_id, w.epoch
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
SELECT * FROM page
"""
"""Read pages, and note for recovery what is in them or has been taken already: nothing else can be in flight.

For a worker that has lost a line nothing is read, and nobody claims the line meanwhile: the new worker's notes stay.
Nor is anything while somebody has locked the line; the sweep finds then what waits.
The note need not be on disk yet: the settle that marks one of these as IN_FLIGHT is written behind it, and waits.
"""

OPEN_DELIVERIES: Final = """
SELECT d.group_id, d.id, d.subscription_id, s.version + u.version, d.crash_count
  FROM unnest(%s::bigint[]) AS i (id)
 CROSS JOIN LATERAL (
   SELECT * FROM delivery_open o WHERE o.id = i.id AND o.closed_on = '9999-12-31' AND o.status = 'PENDING'
      AND (o.expires_at IS NULL OR o.expires_at > clock_timestamp()) LIMIT 1) d
  JOIN subscriptions_subscription s ON s.id = d.subscription_id AND s.is_sending
  JOIN subscriptions_subscriber u ON u.id = s.subscriber_id AND u.status = 'ACTIVE'
"""


class Endpoint(NamedTuple):
    """One of a group's subscriptions that may be sent to."""

    delivery_id: int
    destination: Destination
    crash_count: int = 0

    @property
    def subscription_id(self) -> int:
        """The subscription."""
        return self.destination.subscription_id


Shuffle = Callable[[list[Endpoint]], object]


def asked_first(endpoints: Sequence[Endpoint], first_id: int | None) -> Sequence[Endpoint]:
    """Return the endpoints that may be asked first: the one that was asked at an unclean end, otherwise any."""
    return [endpoint for endpoint in endpoints if endpoint.delivery_id == first_id] or endpoints


@dataclass(slots=True)
class OutgoingGroup:
    """A message that one of a group of endpoints is to take (contract 6.4)."""

    id: int
    content: Content
    endpoints: Sequence[Endpoint]
    """Those that may be tried: neither ended, HELD nor inactive."""
    first_id: int | None
    """The delivery that goes first: its request was in flight at an unclean end."""
    attempts: int
    """Its requests, over all endpoints."""
    uncertain: bool
    """Whether the outcome of any of them is unknown."""
    cycles: int
    """How often all its endpoints were tried."""
    size: int
    is_deferred: bool
    callback_url: str = ""

    def may_be_tried(self, slot_shares: SlotShares) -> bool:
        """Whether an endpoint that is asked first has room for another slot that waits for it."""
        first = asked_first(self.endpoints, self.first_id)
        return any(not slot_shares.is_full(endpoint.subscription_id) for endpoint in first)

    def in_turn(self, shuffle: Shuffle, slot_shares: SlotShares) -> list[Endpoint]:
        """Return the endpoints in the order in which they are tried: at random, those with their share last."""
        endpoints = [*self.endpoints]
        shuffle(endpoints)
        of = len(endpoints)
        return sorted(
            endpoints, key=lambda one: (one.delivery_id != self.first_id, slot_shares.place(one.subscription_id, of))
        )

    def delivery(self, endpoint: Endpoint, *, tried: int, uncertain: bool) -> Outgoing:
        """Return the delivery to an endpoint, after `tried` others in this cycle."""
        return Outgoing(
            id=endpoint.delivery_id,
            content=self.content,
            destination=endpoint.destination,
            attempts=self.attempts + tried,
            sequence=None,
            uncertain=uncertain,
            size=self.size,
            is_deferred=self.is_deferred,
            times_deferred=self.cycles,
            group_id=self.id,
            callback_url=self.callback_url,
            needs_isolation=endpoint.crash_count >= MAX_CRASHES,
        )


def queue_line(slot: Slot, shuffle: Shuffle) -> Story:
    """Send messages of one sender while some are due; at rest, go on when called back."""
    slot_shares = slot.line.slot_shares
    group: OutgoingGroup | None
    while True:
        take = partial(slot.take, lambda one: one.may_be_tried(slot_shares))
        group = yield from next_from_buffer(slot, take)
        if group:
            slot.line.deferred_next = not group.is_deferred
            yield from _offer(slot, group, shuffle)
        else:
            yield Rest()


@dataclass(slots=True)
class Cycle:
    """The endpoints of a group that are tried in turn, and what came of those that were."""

    group: OutgoingGroup
    left: Sequence[Endpoint]
    """Those that are still tried, the next one first."""
    uncertain: bool
    """Whether the outcome of any request of the group is unknown."""
    tried: int = 0
    """How many were asked. Of these:"""
    ended: int = 0
    """How many are not asked again."""
    refused: int = 0
    """How many may not be sent to."""
    held: int = 0
    """How many ended the process that asked them."""

    def settlement(self, line: ActiveLine, delivery: Outgoing, sent: RequestSent) -> Settlement:
        """Return what is recorded of a request that was not taken; the next endpoint is tried if one is left.

        Otherwise the group waits: longest if all endpoints have ended or may not be sent to.
        """
        outcome = outcome_of(sent)
        decision = decide(outcome, QUEUE)
        self.left = [endpoint for endpoint in self.left[1:] if not line.slot_shares.is_full(endpoint.subscription_id)]
        self.ended += decision.final_status is not None
        self.refused += is_out_of_reach(outcome)
        self.held += is_poison(sent)
        self.tried += 1
        self.uncertain |= isinstance(outcome, Unreachable) and outcome.was_sent
        is_held = self.held == self.tried  # the group is read at once, and waits for a release
        line.has_hint |= is_held
        again = None if self.left or is_held else self._pause()
        if is_poison(sent):
            return replace(settlement_of(line.id, delivery, sent), again=again)
        return to_settlement(line.id, delivery, sent, outcome, RetryDecision(decision, None), again=again)

    def _pause(self) -> float:
        is_hopeless = self.refused and self.ended + self.refused == len(self.group.endpoints)
        return MAX_PAUSE_SECONDS if is_hopeless else deferred_pause(self.group.cycles + 1)


def _offer(slot: Slot, group: OutgoingGroup, shuffle: Shuffle) -> Generator[Step, Reply, None]:
    """Try the group's endpoints in turn until one takes the message.

    If none does, and not all have ended, the group is tried again after a pause that grows with each cycle. A cycle
    leaves out endpoints that keep half of the slots waiting.
    """
    line, cycle = slot.line, Cycle(group, group.in_turn(shuffle, slot.line.slot_shares), group.uncertain)
    while cycle.left and not (line.stopping or line.is_overdue(boot_clock.since_boot())):
        delivery = group.delivery(cycle.left[0], tried=cycle.tried, uncertain=cycle.uncertain)
        if delivery.needs_isolation and not (yield from is_isolated(slot, delivery)):
            return
        sent = yield from _send(slot, delivery)
        if not isinstance(sent, RequestSent):  # something is no longer as it was read
            if cycle.tried:
                line.cut_short.append(group.id)
            return
        if sent.is_success:
            slot.ended = settlement_of(line.id, delivery, sent)
            return
        slot.ended = cycle.settlement(line, delivery, sent)


def _send(slot: Slot, delivery: Outgoing) -> Generator[Step, Reply, Reply]:
    """Send a delivery, and note meanwhile that the slot waits for its subscription."""
    slot_shares, subscription_id = slot.line.slot_shares, delivery.destination.subscription_id
    since = boot_clock.since_boot()
    slot_shares.join(subscription_id, since)
    sent = yield Send(delivery)
    answered = isinstance(sent, RequestSent) and not sent.answer.failure
    slot_shares.leave(subscription_id, since, boot_clock.since_boot(), answered=answered)
    return sent


def read_groups(
    wanted: Sequence[PageRequest], budget: BodyBudget, terms: CallbackTerms
) -> dict[int, Buffer[OutgoingGroup]]:
    """Return a buffer of groups for each sender's line: capacity, bytes and `budget` as for deliveries."""
    arguments = {
        "line_id": [line.line_id for line in wanted],
        "epoch": [line.epoch for line in wanted],
        "capacity": [line.capacity for line in wanted],
        "busy": [group_id for line in wanted for group_id in line.busy],
    }
    postpone({group_id: CUT_SHORT_SECONDS for line in wanted for group_id in line.cut_short})
    by_line: dict[int, list[GroupRow]] = defaultdict(list)
    for row in map(GroupRow._make, rows(PAGES, arguments)):
        by_line[row.line_id].append(row)
    pages = {line.line_id: page_of(by_line[line.line_id], line, budget) for line in wanted}
    buffers: dict[int, Buffer[OutgoingGroup]] = {}
    with charged(budget, pages, buffers) as taken:
        of_groups: list[tuple[LiteralString, Arguments]] = [
            (OPEN_DELIVERIES, [[delivery_id for group in taken for delivery_id in group.delivery_ids]]),
            (TOKENS, [[group.id for group in taken]]),
        ]
        waiting, tokens = rows_of_each(of_groups) if taken else ([], [])
        endpoints = _endpoints_of(waiting)
        park([row.id for row in taken if row.id not in endpoints])
        addresses = callback_addresses(tokens, terms)
        off = {group_id: UNADDRESSED_SECONDS for group_id, address in addresses.items() if not address}
        for line in wanted:
            off |= _only_hanging(pages[line.line_id].taken, endpoints, line.hanging)
        ready = [row for row in taken if row.id in endpoints.keys() - off.keys()]
        contents = contents_of({row.message_id for row in ready})
        off |= {row.id: REFUSED_GROUP_SECONDS for row in ready if row.message_id not in contents}
        postpone(off)
        endpoints = {group_id: found for group_id, found in endpoints.items() if group_id not in off}
        buffers |= {line_id: _buffer_of(page, contents, endpoints, addresses) for line_id, page in pages.items()}
    return buffers


def _endpoints_of(waiting: Rows) -> Mapping[int, Sequence[Endpoint]]:
    """Return by group where it may be sent now; a group that nobody can take now is missing."""
    destinations = destinations_of({subscription_id: version for _, _, subscription_id, version, _ in waiting})
    endpoints: dict[int, list[Endpoint]] = defaultdict(list)
    for group_id, delivery_id, subscription_id, _, crash_count in waiting:
        if destination := destinations.get(subscription_id):
            endpoints[group_id].append(Endpoint(delivery_id, destination, crash_count))
    return endpoints


def _only_hanging(
    groups: Iterable[GroupRow], endpoints: Mapping[int, Sequence[Endpoint]], hanging: Mapping[int, float]
) -> dict[int, float]:
    """Return the groups that only hanging endpoints could take: each waits half as long again as they have hung."""
    put_off_for: dict[int, float] = {}
    for group in groups if hanging else ():
        first = asked_first(endpoints.get(group.id, ()), group.first_id)
        if first and all(endpoint.subscription_id in hanging for endpoint in first):
            put_off_for[group.id] = min(hanging[endpoint.subscription_id] for endpoint in first) / 2
    return put_off_for


def _buffer_of(
    page: Page[GroupRow],
    contents: Mapping[int, Content],
    endpoints: Mapping[int, Sequence[Endpoint]],
    addresses: Mapping[int, str],
) -> Buffer[OutgoingGroup]:
    parts: dict[int, list[OutgoingGroup]] = {FRESH: [], DEFERRED: []}
    for row in page.taken:
        if row.id in endpoints and (content := contents.get(row.message_id)):
            group = OutgoingGroup(
                id=row.id,
                content=content,
                endpoints=endpoints[row.id],
                first_id=row.first_id,
                attempts=row.attempts,
                uncertain=row.uncertain,
                cycles=row.cycles,
                size=row.size,
                is_deferred=row.part == DEFERRED,
                callback_url=addresses.get(row.id, ""),
            )
            parts[row.part].append(group)
    return Buffer(fresh=parts[FRESH], deferred=parts[DEFERRED], more=page.more, is_starved=page.is_starved)
