"""Reading pages: what lines may send next, oldest first, with all that their requests need."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, zip_longest
from typing import Final, NamedTuple

import structlog
from django.core.exceptions import ValidationError

from delivery.forwarded_headers import forwarded, merged
from delivery.hands import MAX_BYTES, BodyBudget, Hand, InHand
from delivery.webhooks import Content, Destination
from subscriptions.database import rows
from subscriptions.endpoints import Endpoint, parse_endpoint
from subscriptions.signing_secrets import key_of

ROW: Final = "d.id, d.message_id, d.subscription_id, d.attempts, d.sequence, d.uncertain, d.times_set_aside, d.size"

PAGES: Final = f"""
WITH wanted AS (SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS w (line_id, head_id, capacity)),
active AS (
  SELECT w.line_id, w.capacity, s.id
    FROM wanted w JOIN delivery_line l ON l.id = w.line_id
    JOIN subscriptions_subscriber u ON u.id = l.subscriber_id AND u.status = 'ACTIVE'
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.status = 'ACTIVE')
SELECT w.line_id, 0 AS part, {ROW}
  FROM wanted w JOIN delivery_open d ON d.id = w.head_id AND d.closed_on = '9999-12-31' AND d.status = 'PENDING'
  JOIN active a ON a.line_id = w.line_id AND a.id = d.subscription_id
UNION ALL
SELECT w.line_id, 1, d.* FROM wanted w CROSS JOIN LATERAL (
  SELECT f.* FROM active a CROSS JOIN LATERAL (
    SELECT {ROW} FROM delivery_open d
     WHERE d.subscription_id = a.id AND d.line_id = w.line_id AND d.due_at IS NULL AND d.status = 'PENDING'
     ORDER BY d.id LIMIT w.capacity) f
   WHERE a.line_id = w.line_id ORDER BY f.id LIMIT w.capacity) d
UNION ALL
SELECT w.line_id, 2, {ROW}
  FROM wanted w CROSS JOIN LATERAL (
  SELECT f.* FROM active a CROSS JOIN LATERAL (
    SELECT {ROW}, d.due_at FROM delivery_open d
     WHERE d.subscription_id = a.id AND d.line_id = w.line_id AND d.due_at <= clock_timestamp()
       AND d.status = 'PENDING'
     ORDER BY d.due_at, d.id LIMIT w.capacity) f
   WHERE a.line_id = w.line_id ORDER BY f.due_at, f.id LIMIT w.capacity) d
"""

MESSAGES: Final = """
SELECT m.id, COALESCE(e.name, ''), m.body, m.content_type, m.headers::text
  FROM unnest(%s::bigint[]) AS i (id)
 CROSS JOIN LATERAL (SELECT * FROM delivery_message m WHERE m.id = i.id LIMIT 1) m
  LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id
"""

DESTINATIONS: Final = """
SELECT s.id, s.version + u.version, s.endpoint, u.headers::text, s.headers::text, s.signing_secret
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
 WHERE s.id = ANY(%s)
"""

HEAD, FRESH, ASIDE = range(3)

UNUSABLE: Final = Endpoint("POST", "unusable:endpoint-or-secret")
"""Stands for what got past validation: no request can be sent there, so its line is held and no other line stops."""

log = structlog.get_logger(__name__)


class Row(NamedTuple):
    """A waiting delivery as read, without its body."""

    line_id: int
    part: int
    id: int
    message_id: int
    subscription_id: int
    attempts: int
    sequence: int | None
    uncertain: bool
    times_set_aside: int
    size: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read for one line: at most `capacity` deliveries, `head_id` first if it still may be sent."""

    line_id: int
    head_id: int | None
    capacity: int


def read_pages(wanted: Sequence[Wanted], budget: BodyBudget) -> dict[int, Hand]:
    """Return a hand for every line: at most its capacity, 1 MiB of bodies (but always one), and what `budget` has.

    Takes each hand's bytes from `budget`; whoever drops a delivery gives them back. A hand is `starved` where there
    is work but the process holds too many bodies already.
    """
    columns = [[line.line_id for line in wanted], [line.head_id for line in wanted], [line.capacity for line in wanted]]
    by_line: dict[int, list[Row]] = defaultdict(list)
    for columns_of_row in rows(PAGES, columns):
        row = Row(*columns_of_row)
        by_line[row.line_id].append(row)
    pages = {line.line_id: _page(by_line[line.line_id], line, budget) for line in wanted}
    contents = _contents({row.message_id for page in pages.values() for row in page.taken})
    destinations = _destinations({row.subscription_id for page in pages.values() for row in page.taken})
    for page in pages.values():
        gone = [row for row in page.taken if not _is_there(row, contents, destinations)]
        budget.give_back(sum(row.size for row in gone))
    return {line_id: _hand(page, contents, destinations) for line_id, page in pages.items()}


class _Page(NamedTuple):
    taken: list[Row]
    more: bool
    """Whether the line has more than it could take."""


def _page(waiting: list[Row], line: Wanted, budget: BodyBudget) -> _Page:
    """Take from the front what fits."""
    taken: list[Row] = []
    held = 0
    for row in islice(_in_order(waiting), line.capacity):
        if (taken and held + row.size > MAX_BYTES) or not budget.take(row.size):
            return _Page(taken, more=True)
        taken.append(row)
        held += row.size
    return _Page(taken, more=len(waiting) >= line.capacity)


def _in_order(waiting: list[Row]) -> Iterator[Row]:
    """Yield the head, then those never sent and those set aside in turn, so that a cut page has of both."""
    head = [row for row in waiting if row.part == HEAD]
    heads = {row.id for row in head}
    fresh = [row for row in waiting if row.part == FRESH and row.id not in heads]
    aside = [row for row in waiting if row.part == ASIDE and row.id not in heads]
    yield from head
    for pair in zip_longest(fresh, aside):
        yield from (row for row in pair if row)


def _hand(page: _Page, contents: dict[int, Content], destinations: dict[int, Destination]) -> Hand:
    parts: dict[int, list[InHand]] = {HEAD: [], FRESH: [], ASIDE: []}
    for row in page.taken:
        if _is_there(row, contents, destinations):
            content, destination = contents[row.message_id], destinations[row.subscription_id]
            parts[row.part].append(
                InHand(
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
            )
    return Hand(head=next(iter(parts[HEAD]), None), fresh=parts[FRESH], aside=parts[ASIDE], more=page.more)


def _is_there(row: Row, contents: dict[int, Content], destinations: dict[int, Destination]) -> bool:
    """Tell whether nobody cancelled the delivery and deleted what it needs since its row was read."""
    return row.message_id in contents and row.subscription_id in destinations


def _contents(message_ids: Collection[int]) -> dict[int, Content]:
    if not message_ids:
        return {}
    return {
        message_id: Content(message_id, event_type, body, _forwarded(content_type, headers))
        for message_id, event_type, body, content_type, headers in rows(MESSAGES, [sorted(message_ids)])
    }


def _forwarded(content_type: str, headers: str) -> dict[str, str]:
    pairs = [(name, value) for name, value in json.loads(headers)]
    return merged(dict(forwarded(pairs)), {"Content-Type": content_type})


def _destinations(subscription_ids: Collection[int]) -> dict[int, Destination]:
    if not subscription_ids:
        return {}
    return {row[0]: _destination(*row) for row in rows(DESTINATIONS, [sorted(subscription_ids)])}


@lru_cache(maxsize=8192)
def _destination(
    subscription_id: int, stamp: int, endpoint: str, subscriber_headers: str, own_headers: str, secret: str
) -> Destination:
    try:
        parsed, key = parse_endpoint(endpoint), key_of(secret)
    except ValidationError as refused:
        log.error("subscription.unusable", subscription_id=subscription_id, reason=str(refused))  # noqa: TRY400
        parsed, key = UNUSABLE, b""
    headers = merged(json.loads(subscriber_headers), json.loads(own_headers))
    return Destination(subscription_id, stamp, parsed.method, parsed.url, headers, key)
