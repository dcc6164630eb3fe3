"""Hand out the oldest available messages, each to one client (contract 9.1, 9.3, 9.7)."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import structlog
from django.db import transaction

from broker_project.core.db import rows
from delivery.due_times import FIRST_SENTINEL, RETURNED
from delivery.mailbox.available import available, in_flight
from delivery.mailbox.mailbox import Box, Fetched
from delivery.webhook.cloud_event_output import enveloped
from delivery.webhook.content import COLUMNS, MESSAGE, content_in
from delivery.webhook.parts import WEBHOOK_ID_PREFIX, Content

PAGE_BYTES: Final = 1_048_576
"""What one fetch hands out of bodies at most, but always one message."""
LATE_REACH: Final = 1_000
"""Of what timed out, how many an ordered mailbox looks at for the oldest: it is few, unless it was not ordered then."""

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('mailbox', %s))"
"""Lets those who change what is in flight of an ordered mailbox do so one after the other (contract 9.7).

A statement of its own: whoever has waited must see what the other has done.
"""

REACH: Final = 5
"""How many times as many as are wanted are looked at first: others may be at the front at the same time."""
MIN_REACH: Final = 50
FAR: Final = 1_000
"""How many are looked at once others have had all of those: ten of whoever fetches the most that there may be."""
TRIES: Final = 3
"""How often it is asked where others have had all that was near the front."""

DELIVERY, MESSAGE_COLUMNS = 2, 10
"""Where in a row the delivery begins, and where its message."""

log = structlog.get_logger(__name__)

CONTENT_TYPE: Final = "Content-Type"

HANDED_OUT: Final = f"""
taken AS MATERIALIZED (
  SELECT id FROM (SELECT id, size, sum(size) OVER (ORDER BY id) AS upto FROM locked) l
   WHERE upto = size OR upto <= {PAGE_BYTES}),
handed_out AS (
  UPDATE delivery_open d
     SET status = 'IN_FLIGHT', fetches = d.fetches + 1, due_at = {RETURNED}, line_id = (SELECT min(line_id) FROM box),
         fetched_until = clock_timestamp() + make_interval(secs => (SELECT min(ack_seconds) FROM box)),
         uncertain = d.uncertain OR d.fetched_until IS NOT NULL
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM taken))
  RETURNING d.id, d.fetches, d.subscription_id, d.fetched_until,
            extract(epoch FROM d.fetched_until - clock_timestamp())::float8, d.uncertain, d.message_id,
            (SELECT output FROM box WHERE box.id = d.subscription_id))
SELECT n.is_ordered, n.is_any, h.*, {COLUMNS}
  FROM (SELECT (SELECT mailbox_ordered FROM subscriptions_subscriber WHERE id = %(subscriber)s) AS is_ordered,
               EXISTS (SELECT FROM near) AS is_any) n
  LEFT JOIN handed_out h ON true
  LEFT JOIN LATERAL {MESSAGE.format(id="h.message_id")}
 ORDER BY h.id
"""
"""Of what is `locked`, as much as one fetch may have, with what is delivered of it."""


def _hands_out(most: str, *, of: str, there: str, reach: str, lock: str) -> str:
    """Return the statement that hands out so many of what is `there`, of subscribers `u` of which `of` is true."""
    return f"""
WITH box AS MATERIALIZED (
  SELECT s.id, s.output, u.ack_seconds, u.max_redeliveries, l.id AS line_id
    FROM subscriptions_subscriber u
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_fetchable
    JOIN delivery_line l ON l.subscriber_id = u.id AND l.lane = 'main'
   WHERE u.id = %(subscriber)s AND u.status = 'ACTIVE' AND {of}),
near AS MATERIALIZED (
  SELECT d.id FROM box b CROSS JOIN LATERAL ({there}) d ORDER BY d.id LIMIT {reach}),
locked AS MATERIALIZED (
  SELECT d.* FROM (SELECT id FROM near ORDER BY id) n CROSS JOIN LATERAL (
    SELECT o.id, o.size FROM delivery_open o
     WHERE o.id = n.id AND o.closed_on = '9999-12-31'
       AND (o.status = 'PENDING' AND (o.due_at IS NULL OR o.due_at < {FIRST_SENTINEL})
            OR o.fetched_until <= clock_timestamp() AND NOT o.cancel_requested)
     LIMIT 1 {lock}) d
   LIMIT {most}),{HANDED_OUT}"""


FETCH: Final = _hands_out(
    "%(most)s",
    of="NOT u.mailbox_ordered",
    there=available("%(reach)s"),
    reach="%(reach)s",
    lock="FOR UPDATE SKIP LOCKED",
)
"""Returns one row at least: whether the mailbox is ordered, whether it had anything, and what is handed out.

Of what is near the front, the oldest are locked, one by one and no more than are wanted; what somebody else has is
passed over, and what he had is looked at anew once it is locked. They come back to the main line: what was set aside in
the retry line waits for no time any more. What has timed out may have been done: it is uncertain from then on.
"""

FETCH_IN_ORDER: Final = _hands_out(
    "1",
    of=f"u.mailbox_ordered AND NOT {in_flight('u.id')}",
    there=available("1", late=str(LATE_REACH)),
    reach="1",
    lock="FOR UPDATE",
)
"""The same of an ordered mailbox: the oldest or nothing, once nobody holds any.

Whoever is at the oldest is waited for, and not passed over: he may be giving it back. It is the only delivery locked
here, and whoever locks several asks for `LOCK` before, if at all: so nobody who is waited for waits for this.
"""


class _Row(NamedTuple):
    """A delivery as it is handed out."""

    id: int
    fetch: int
    subscription_id: int
    until: datetime
    seconds: float
    is_uncertain: bool
    message_id: int
    output: str
    content: Content | None
    """None: its message is lost."""


class _Answer(NamedTuple):
    """What the database says to one fetch."""

    is_ordered: bool | None
    """None: the subscriber is gone."""
    is_any: bool
    """Whether anything was available."""
    handed_out: Sequence[_Row]


def fetch(box: Box, *, most: int) -> list[Fetched]:
    """Hand out the oldest available messages, `most` of them at most, in order of id; durably before it returns.

    Empty: there is nothing, or somebody holds one of an ordered mailbox.
    """
    reach = MIN_REACH + REACH * most
    for _ in range(TRIES):
        answer = _hand_out(box, most=most, reach=reach)
        if answer.handed_out:
            return _told(answer.handed_out)
        if not answer.is_any and answer.is_ordered in {box.is_ordered, None}:
            break
        box, reach = box._replace(is_ordered=bool(answer.is_ordered)), FAR
    return []


def _hand_out(box: Box, *, most: int, reach: int) -> _Answer:
    asked = {"subscriber": box.subscriber_id, "most": most, "reach": reach}
    found = _in_order(box) if box.is_ordered else rows(FETCH, asked)
    is_ordered, is_any, *_ = found[0]
    return _Answer(is_ordered, is_any, [_row(row) for row in found if row[DELIVERY] is not None])


def _row(row: Sequence[Any]) -> _Row:
    content = None if row[MESSAGE_COLUMNS] is None else content_in(row[MESSAGE_COLUMNS:])
    return _Row._make([*row[DELIVERY:MESSAGE_COLUMNS], content])


def _in_order(box: Box) -> list[Any]:
    with transaction.atomic():
        rows(LOCK, [box.subscriber_id])
        return rows(FETCH_IN_ORDER, {"subscriber": box.subscriber_id})


def _told(handed_out: Sequence[_Row]) -> list[Fetched]:
    """Return them as they are told; what has lost its message, which nothing should bring about, times out."""
    if lost := [row.id for row in handed_out if row.content is None]:
        log.error("mailboxes.message_missing", delivery_ids=lost)
    return [
        Fetched(
            row.id,
            row.fetch,
            row.subscription_id,
            row.until,
            row.seconds,
            enveloped(row.content, row.output, {}),
            row.is_uncertain,
        )
        for row in handed_out
        if row.content
    ]


def document(fetched: Fetched, *, receipt: str) -> dict[str, object]:
    """Return what is told of a message that is handed out; times are datetimes.

    Its body stands there as text or in base64, never as a value: it is bytes (contract 2.5), and a message that some
    reader of JSON chokes on would take the others with it.
    """
    content = fetched.content
    headers = dict(content.headers)
    return {
        "receipt": receipt,
        "id": f"{WEBHOOK_ID_PREFIX}{fetched.delivery_id}",
        "delivery_id": fetched.delivery_id,
        "message_id": content.message_id,
        "event_type": content.event_type,
        "subscription_id": fetched.subscription_id,
        "published_at": datetime.fromtimestamp(content.published_ms / 1000, UTC),
        "in_flight_until": fetched.until,
        "in_flight_seconds": fetched.seconds,
        "redeliveries": fetched.redeliveries,
        "possible_duplicate": fetched.possible_duplicate,
        "content_type": headers.pop(CONTENT_TYPE, ""),
        "headers": headers,
        **_body(content.body),
    }


def _body(body: bytes) -> dict[str, str]:
    """Return the exact bytes: a text that is they in UTF-8, or base64 where there is none."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode()}
