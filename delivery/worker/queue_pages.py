"""Read pages of QUEUE groups, oldest first, with their endpoints (contract 6.3 to 6.5)."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from broker_project.core.db import rows
from delivery.callbacks.address import CallbackTerms, callback_addresses
from delivery.dispatch.parked_groups import put_away, put_off
from delivery.webhook.content import contents_of
from delivery.webhook.destination import destinations_of
from delivery.webhook.parts import Content
from delivery.worker.buffer import BodyBudget, Buffer
from delivery.worker.pages import ASIDE, FRESH, GroupRow, Page, PageRequest, charged, page_of
from delivery.worker.queue import Endpoint, OutgoingGroup, asked_first

GROUP: Final = "g.id, g.message_id, g.delivery_ids, g.size, g.cycles, g.attempts, g.uncertain, g.first_id"

PAGES: Final = f"""
WITH wanted AS MATERIALIZED (
  SELECT w.line_id, w.capacity
    FROM unnest(%(line_id)s::bigint[], %(epoch)s::bigint[], %(capacity)s::int[]) AS w (line_id, epoch, capacity)
    JOIN delivery_line l ON l.id = w.line_id AND l.epoch = w.epoch
     FOR KEY SHARE OF l),
page AS MATERIALIZED (
  SELECT w.line_id, 1 AS part, f.* FROM wanted w CROSS JOIN LATERAL (
    SELECT {GROUP} FROM delivery_queuegroup g
     WHERE g.line_id = w.line_id AND g.due_at IS NULL AND g.id <> ALL (%(busy)s::bigint[])
     ORDER BY g.id LIMIT w.capacity) f
  UNION ALL
  SELECT w.line_id, 2, a.* FROM wanted w CROSS JOIN LATERAL (
    SELECT {GROUP} FROM delivery_queuegroup g
     WHERE g.line_id = w.line_id AND g.due_at <= (SELECT clock_timestamp()) AND g.id <> ALL (%(busy)s::bigint[])
     ORDER BY g.due_at, g.id LIMIT w.capacity) a),
forgotten AS (
  DELETE FROM delivery_pageread p USING wanted w WHERE p.line_id = w.line_id),
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM (
    SELECT line_id, unnest(delivery_ids) AS id FROM page
    UNION ALL
    SELECT g.line_id, unnest(g.delivery_ids) FROM delivery_queuegroup g WHERE g.id = ANY (%(busy)s::bigint[])) i
   GROUP BY line_id
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
SELECT * FROM page
"""
"""Reads the pages, and notes for mending what is in them or has been taken already: nothing else can be under way.

For whoever has lost a line nothing is read, and nobody claims it meanwhile: the notes of its new event loop stay.
The note need not be on disk yet: the settle that marks one of these as under way is written behind it, and waits.
"""

WAITING: Final = """
SELECT d.group_id, d.id, d.subscription_id
  FROM unnest(%s::bigint[]) AS i (id)
 CROSS JOIN LATERAL (
   SELECT * FROM delivery_open o WHERE o.id = i.id AND o.closed_on = '9999-12-31' AND o.status = 'PENDING'
      AND (o.expires_at IS NULL OR o.expires_at > clock_timestamp()) LIMIT 1) d
"""

CUT_SHORT_SECONDS: Final = 1.0
"""How long a group waits of which one endpoint was asked, and the next one could not be, as it had been read."""
UNADDRESSED_SECONDS: Final = 60.0
"""How long a group waits whose callback address cannot be made: somebody has to give the key back."""


def read_groups(
    wanted: Sequence[PageRequest], budget: BodyBudget, terms: CallbackTerms
) -> dict[int, Buffer[OutgoingGroup]]:
    """Return a buffer of groups for every sender's line: capacity, bytes and `budget` as for deliveries."""
    arguments = {
        "line_id": [line.line_id for line in wanted],
        "epoch": [line.epoch for line in wanted],
        "capacity": [line.capacity for line in wanted],
        "busy": [group_id for line in wanted for group_id in line.busy],
    }
    put_off({group_id: CUT_SHORT_SECONDS for line in wanted for group_id in line.cut_short})
    by_line: dict[int, list[GroupRow]] = defaultdict(list)
    for columns in rows(PAGES, arguments):
        row = GroupRow(*columns)
        by_line[row.line_id].append(row)
    pages = {line.line_id: page_of(by_line[line.line_id], line, budget) for line in wanted}
    buffers: dict[int, Buffer[OutgoingGroup]] = {}
    with charged(budget, pages, buffers) as taken:
        endpoints = _endpoints_of(taken)
        put_away([row.id for row in taken if row.id not in endpoints])
        addresses = callback_addresses(endpoints.keys(), terms)
        off = {group_id: UNADDRESSED_SECONDS for group_id, address in addresses.items() if not address}
        for line in wanted:
            off |= _crowded_out(pages[line.line_id].taken, endpoints, line.hanging)
        put_off(off)
        endpoints = {group_id: found for group_id, found in endpoints.items() if group_id not in off}
        contents = contents_of({row.message_id for row in taken if row.id in endpoints})
        buffers |= {line_id: _buffer_of(page, contents, endpoints, addresses) for line_id, page in pages.items()}
    return buffers


def _endpoints_of(groups: Iterable[GroupRow]) -> Mapping[int, Sequence[Endpoint]]:
    """Return by group where it may be sent now; a group that nobody can take now is missing."""
    waiting = rows(WAITING, [[delivery_id for group in groups for delivery_id in group.delivery_ids]])
    destinations = destinations_of({subscription_id for _, _, subscription_id in waiting})
    endpoints: dict[int, list[Endpoint]] = defaultdict(list)
    for group_id, delivery_id, subscription_id in waiting:
        if destination := destinations.get(subscription_id):
            endpoints[group_id].append(Endpoint(delivery_id, destination))
    return endpoints


def _crowded_out(
    groups: Iterable[GroupRow], endpoints: Mapping[int, Sequence[Endpoint]], hanging: Mapping[int, float]
) -> dict[int, float]:
    """Return the groups that only endpoints which hang could take: each waits half as long again as they have hung."""
    hung: dict[int, float] = {}
    for group in groups if hanging else ():
        first = asked_first(endpoints.get(group.id, ()), group.first_id)
        if first and all(one.subscription_id in hanging for one in first):
            hung[group.id] = min(hanging[one.subscription_id] for one in first) / 2
    return hung


def _buffer_of(
    page: Page[GroupRow],
    contents: Mapping[int, Content],
    endpoints: Mapping[int, Sequence[Endpoint]],
    addresses: Mapping[int, str],
) -> Buffer[OutgoingGroup]:
    parts: dict[int, list[OutgoingGroup]] = {FRESH: [], ASIDE: []}
    for row in page.taken:
        content = contents.get(row.message_id)
        if row.id in endpoints and content:
            parts[row.part].append(_outgoing(row, content, endpoints[row.id], addresses.get(row.id, "")))
    return Buffer(fresh=parts[FRESH], aside=parts[ASIDE], more=page.more)


def _outgoing(row: GroupRow, content: Content, endpoints: Sequence[Endpoint], callback_url: str) -> OutgoingGroup:
    return OutgoingGroup(
        row.id,
        content,
        endpoints,
        row.first_id,
        row.attempts,
        row.uncertain,
        row.cycles,
        row.size,
        is_deferred=row.part == ASIDE,
        callback_url=callback_url,
    )
