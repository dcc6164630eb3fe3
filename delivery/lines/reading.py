"""Reading pages: what lines may send next, oldest first, with all that their requests need."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from delivery.callbacks.addressing import original_addresses
from delivery.lines.hands import BodyBudget, Hand, InHand
from delivery.lines.pages import ASIDE, FRESH, HEAD, Page, Row, Wanted, page_of
from delivery.webhooks.contents import contents_of
from delivery.webhooks.loading import destinations_of
from delivery.webhooks.parts import Content, Destination
from subscriptions.database import rows

ROW: Final = "d.id, d.message_id, d.subscription_id, d.attempts, d.sequence, d.uncertain, d.times_set_aside, d.size"
LIVES: Final = "(d.expires_at IS NULL OR d.expires_at > (SELECT clock_timestamp()))"

PAGES: Final = f"""
WITH wanted AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS w (line_id, head_id, capacity)),
active AS MATERIALIZED (
  SELECT w.line_id, w.capacity, l.lane = 'main' AS has_fresh, array_agg(s.id) AS subscription_ids
    FROM wanted w JOIN delivery_line l ON l.id = w.line_id
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_sending AND s.kind = 'TOPIC'
         AND (l.lane = 'main' OR NOT s.on_trial)
   GROUP BY 1, 2, 3),
page AS MATERIALIZED (
  SELECT w.line_id, 0 AS part, {ROW}
    FROM wanted w JOIN delivery_open d ON d.id = w.head_id AND d.closed_on = '9999-12-31' AND d.status = 'PENDING'
    LEFT JOIN subscriptions_subscription s ON s.id = d.subscription_id
    LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
   WHERE d.line_id = w.line_id AND (d.subscription_id IS NULL OR s.is_sending AND u.status = 'ACTIVE') AND {LIVES}
  UNION ALL
  SELECT a.line_id, 1, d.* FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
      SELECT {ROW} FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at IS NULL AND d.status = 'PENDING'
         AND {LIVES}
       ORDER BY d.id LIMIT a.capacity) f
     ORDER BY f.id LIMIT a.capacity) d
   WHERE a.has_fresh
  UNION ALL
  SELECT a.line_id, 2, {ROW} FROM active a CROSS JOIN LATERAL (
    SELECT f.* FROM unnest(a.subscription_ids) AS s (id) CROSS JOIN LATERAL (
      SELECT {ROW}, d.due_at FROM delivery_open d
       WHERE d.subscription_id = s.id AND d.line_id = a.line_id AND d.due_at <= (SELECT clock_timestamp())
         AND d.status = 'PENDING' AND {LIVES}
       ORDER BY d.due_at, d.id LIMIT a.capacity) f
     ORDER BY f.due_at, f.id LIMIT a.capacity) d),
noted AS (
  INSERT INTO delivery_pageread (line_id, delivery_ids)
  SELECT line_id, array_agg(id) FROM page GROUP BY line_id
  HAVING set_config('synchronous_commit', 'off', true) IS NOT NULL)
SELECT * FROM page
"""
"""Reads the pages, and notes for mending what is in them.

A retry line has nothing that was never tried, and nothing of a subscription on trial, which is the main line's alone.

The note need not be on disk yet: the settle that marks one of these as under way is written behind it, and waits.
"""


def read_pages(wanted: Sequence[Wanted], budget: BodyBudget) -> dict[int, Hand[InHand]]:
    """Return a hand for every line: at most its capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Takes each hand's bytes from `budget`; whoever drops a delivery gives them back. A hand is `starved` where there
    is work but the process holds too many bodies already.
    """
    columns = [[line.line_id for line in wanted], [line.head_id for line in wanted], [line.capacity for line in wanted]]
    by_line: dict[int, list[Row]] = defaultdict(list)
    for columns_of_row in rows(PAGES, columns):
        row = Row(*columns_of_row)
        by_line[row.line_id].append(row)
    pages = {line.line_id: page_of(by_line[line.line_id], line, budget) for line in wanted}
    hands: dict[int, Hand[InHand]] = {}
    try:
        taken = [row for page in pages.values() for row in page.taken]
        contents = contents_of({row.message_id for row in taken})
        destinations = destinations_of({row.subscription_id for row in taken if row.subscription_id is not None})
        originals = original_addresses({row.line_id for row in taken if row.subscription_id is None})
        hands = {line_id: _hand(page, contents, destinations, originals) for line_id, page in pages.items()}
    finally:
        # What is in no hand, because it is gone meanwhile or the database failed, is not held.
        size = sum(row.size for page in pages.values() for row in page.taken)
        budget.give_back(size - sum(hand.bytes for hand in hands.values()))
    return hands


def _hand(
    page: Page[Row],
    contents: Mapping[int, Content],
    destinations: Mapping[int, Destination],
    originals: Mapping[int, Destination],
) -> Hand[InHand]:
    parts: dict[int, list[InHand]] = {HEAD: [], FRESH: [], ASIDE: []}
    for row in page.taken:
        # Both are there unless somebody cancelled the delivery and deleted what it needs since its row was read.
        content, of = contents.get(row.message_id), row.subscription_id
        destination = originals.get(row.line_id) if of is None else destinations.get(of)
        if content and destination:
            parts[row.part].append(_in_hand(row, content, destination))
    return Hand(head=next(iter(parts[HEAD]), None), fresh=parts[FRESH], aside=parts[ASIDE], more=page.more)


def _in_hand(row: Row, content: Content, destination: Destination) -> InHand:
    return InHand(
        row.id,
        content,
        destination,
        row.attempts,
        row.sequence,
        row.uncertain,
        row.size,
        is_aside=row.part == ASIDE,
        times_set_aside=row.times_set_aside,
    )
