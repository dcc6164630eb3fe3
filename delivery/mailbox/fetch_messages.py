"""Fetch the oldest available messages, each to one client (contract 9.1, 9.3, 9.7)."""

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, NamedTuple

import structlog
from django.db import transaction

from broker_project.core.db import rows
from delivery.filing import MAIN_LINE
from delivery.mailbox.available import available, in_flight
from delivery.mailbox.receipts import FetchedMessage, MailboxRef
from delivery.publish.together import in_slices
from delivery.statuses import DELIVERY_ID_PREFIX
from delivery.webhook.cloud_event_output import in_payload_format
from delivery.webhook.content import COLUMNS, MESSAGE, content_of

MAX_FETCH_BYTES: Final = 1_048_576
"""Of bodies in one fetch, which returns one message at least."""
MAX_FETCHED: Final = 100
"""Messages of one fetch, also if it serves several clients: what is locked and not returned is hidden from others."""
MAX_TIMED_OUT: Final = 1_000
"""Timed-out messages among which an ordered mailbox looks for the oldest: more were not ordered when fetched."""

DEPTH_PER_MESSAGE: Final = 5
"""Messages looked at first for each one wanted: other clients may be fetching at the same time."""
MIN_DEPTH: Final = 50
RETRY_DEPTH: Final = 1_000
"""Messages looked at once other clients had all of those: ten times the most that a client fetches."""
TRIES: Final = 3

LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended('mailbox', %s))"
"""Serialises what changes the messages in flight of an ordered mailbox (contract 9.7).

A statement of its own: the next one must see what the previous holder of the lock did.
"""

log = structlog.get_logger(__name__)

FETCHED: Final = f"""
taken AS MATERIALIZED (
  SELECT id FROM (SELECT id, size, sum(size) OVER (ORDER BY id) AS upto FROM locked) l
   WHERE upto = size OR upto <= {MAX_FETCH_BYTES}),
fetched AS (
  UPDATE delivery_open d
     SET status = 'IN_FLIGHT', fetches = d.fetches + 1, fetch_id = (random() * 9e15)::bigint,
         waits_for = 'RETURN', due_at = NULL, line_id = (SELECT min(line_id) FROM box),
         fetched_until = clock_timestamp() + make_interval(secs => (SELECT min(ack_seconds) FROM box)),
         fetched_seconds = (SELECT min(ack_seconds) FROM box),
         uncertain = d.uncertain OR d.fetched_until IS NOT NULL
   WHERE d.closed_on = '9999-12-31' AND d.id = ANY (ARRAY(SELECT id FROM taken))
  RETURNING d.id, d.fetch_id, d.fetches - 1, d.subscription_id, d.fetched_until,
            extract(epoch FROM d.fetched_until - clock_timestamp())::float8, d.uncertain, d.message_id,
            (SELECT output FROM box WHERE box.id = d.subscription_id))
SELECT n.is_ordered, n.is_any, h.*, {COLUMNS}
  FROM (SELECT (SELECT mailbox_ordered FROM subscriptions_subscriber WHERE id = %(subscriber)s) AS is_ordered,
               EXISTS (SELECT FROM near) AS is_any) n
  LEFT JOIN fetched h ON true
  LEFT JOIN LATERAL {MESSAGE.format(id="h.message_id")}
 ORDER BY h.id
"""
"""Of what is `locked`, as much as one fetch may have, with its content."""


def _fetch_statement(*, condition: str, candidates: str, depth: str, lock: str, limit: str) -> str:
    """Return the statement that fetches `limit` of the `candidates` of a subscriber `u` that meets `condition`."""
    return f"""
WITH box AS MATERIALIZED (
  SELECT s.id, s.output, u.ack_seconds, u.max_redeliveries, l.id AS line_id
    FROM subscriptions_subscriber u
    JOIN subscriptions_subscription s ON s.subscriber_id = u.id AND s.is_fetchable
   CROSS JOIN {MAIN_LINE.format("u.id")} l
   WHERE u.id = %(subscriber)s AND u.status = 'ACTIVE' AND {condition}),
near AS MATERIALIZED (
  SELECT d.id FROM box b CROSS JOIN LATERAL ({candidates}) d ORDER BY d.id LIMIT {depth}),
locked AS MATERIALIZED (
  SELECT d.* FROM (SELECT id FROM near ORDER BY id) n CROSS JOIN LATERAL (
    SELECT o.id, o.size FROM delivery_open o
     WHERE o.id = n.id AND o.closed_on = '9999-12-31'
       AND (o.status = 'PENDING' AND o.waits_for IN ('TURN', 'RETRY')
            OR o.fetched_until <= clock_timestamp() AND NOT o.cancel_requested)
     LIMIT 1 {lock}) d
   LIMIT {limit}),{FETCHED}"""


FETCH: Final = _fetch_statement(
    condition="NOT u.mailbox_ordered",
    candidates=available("%(depth)s"),
    depth="%(depth)s",
    lock="FOR UPDATE SKIP LOCKED",
    limit="%(max_messages)s",
)
"""Returns at least one row: whether the mailbox is ordered, whether anything was available, and what is fetched.

The oldest candidates are locked one by one, and no more than are wanted. Locked ones are skipped, and each is checked
again once it is locked. They move to the main line: a message deferred to the retry line waits for no time any more.
A message that timed out may have been processed, so it is uncertain.
"""

FETCH_IN_ORDER: Final = _fetch_statement(
    condition=f"u.mailbox_ordered AND NOT {in_flight('u.id')}",
    candidates=available("1", timed_out_limit=str(MAX_TIMED_OUT)),
    depth="1",
    lock="FOR UPDATE",
    limit="1",
)
"""The same for an ordered mailbox: the oldest message, or none while one is in flight.

The oldest is never skipped: the transaction that has locked it may be returning it. It is the only delivery locked
here, and statements that lock several take `LOCK` before, if at all, so there is no deadlock.
"""


class FetchCall(NamedTuple):
    """What a client asks for."""

    mailbox: MailboxRef
    max_messages: int


def fetch_together(calls: Sequence[FetchCall]) -> list[list[FetchedMessage] | Exception]:
    """Fetch for several clients at a time; those who asked first get the oldest messages of a mailbox."""
    results: list[list[FetchedMessage] | Exception] = [[] for _ in calls]
    for mailbox in dict.fromkeys(call.mailbox for call in calls):
        empty = [number for number, call in enumerate(calls) if call.mailbox == mailbox]
        while empty:
            served = next(in_slices(empty, lambda number: calls[number].max_messages, MAX_FETCHED))
            try:
                found = fetch(mailbox, max_messages=sum(calls[number].max_messages for number in served))
            except Exception as failure:  # noqa: BLE001 - others have messages that are not to be lost
                results = [failure if number in empty else result for number, result in enumerate(results)]
                break
            if not found:
                break
            oldest = iter(found)
            for number in served:
                results[number] = [*islice(oldest, calls[number].max_messages)]
            empty = [number for number in empty if not results[number]]
    return results


def fetch(mailbox: MailboxRef, *, max_messages: int) -> list[FetchedMessage]:
    """Fetch the oldest available messages in order of id, at most `max_messages`; durable on return.

    Returns nothing if nothing is available, or if one of an ordered mailbox is in flight.
    """
    subscriber_id, is_ordered = mailbox
    depth = MIN_DEPTH + DEPTH_PER_MESSAGE * max_messages
    for _ in range(TRIES):
        arguments = {"subscriber": subscriber_id, "max_messages": max_messages, "depth": depth}
        if is_ordered:
            with transaction.atomic():
                rows(LOCK, [subscriber_id])
                found = rows(FETCH_IN_ORDER, {"subscriber": subscriber_id})
        else:
            found = rows(FETCH, arguments)
        is_ordered_now, is_any, delivery_id, *_ = found[0]
        if delivery_id is not None:
            return _fetched(found)
        if not is_any and is_ordered_now in {is_ordered, None}:  # None: the subscriber is deleted
            break
        is_ordered, depth = bool(is_ordered_now), RETRY_DEPTH
    return []


def _fetched(found: Sequence[Sequence[Any]]) -> list[FetchedMessage]:
    """Return the messages; one without content, which should not exist, is left to time out."""
    fetched: list[FetchedMessage] = []
    for _, _, delivery_id, fetch_id, earlier, subscription_id, until, seconds, unsure, _, output, *message in found:
        if message[0] is None:
            log.error("mailboxes.message_missing", delivery_id=delivery_id)
            continue
        content = in_payload_format(content_of(*message), output, {})
        fetched.append(FetchedMessage(delivery_id, fetch_id, earlier, subscription_id, until, seconds, unsure, content))
    return fetched


def message_document(fetched: FetchedMessage, *, receipt: str) -> dict[str, object]:
    """Return the API's object of a message; times are datetimes.

    The body is text or base64, never a JSON value: it is bytes (contract 2.5), and a message that some JSON parser
    rejects would take the others with it.
    """
    content = fetched.content
    headers = dict(content.headers)
    try:
        body = {"body": content.body.decode()}
    except UnicodeDecodeError:
        body = {"body_base64": base64.b64encode(content.body).decode()}
    return {
        "receipt": receipt,
        "id": f"{DELIVERY_ID_PREFIX}{fetched.delivery_id}",
        "delivery_id": fetched.delivery_id,
        "message_id": content.message_id,
        "event_type": content.event_type,
        "subscription_id": fetched.subscription_id,
        "published_at": datetime.fromtimestamp(content.published_ms / 1000, UTC),
        "in_flight_until": fetched.until,
        "in_flight_seconds": fetched.seconds,
        "redeliveries": fetched.redeliveries,
        "possible_duplicate": fetched.possible_duplicate,
        "content_type": headers.pop("Content-Type", ""),
        "headers": headers,
        **body,
    }
