"""Recording a SYNC call, whatever came of it (contract 7.2, 10.3)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import orjson
import structlog
from django.db import Error
from psycopg.errors import UniqueViolation

from broker_project.core.db import forget_connection, rows
from delivery.due_times import FILE_GONE
from delivery.models import MessageOutcome
from delivery.publish.store import NewMessage
from delivery.sync.answer import Ended
from delivery.webhook.parts import Destination
from delivery.worker.topic import KEPT_BODY_BYTES, KEPT_HEADER_BYTES

CONFIGURED: Final = """s.id, s.version + u.version, s.endpoint, u.id, u.headers, s.headers, s.signing_secret,
       s.overlap_ends_at > clock_timestamp(), s.output, s.script"""
"""Where a subscription's requests go, and how they are signed."""

PATIENT_SECONDS: Final = 5.0
"""How long a publisher may wait for its answer because the database is away: it was given, and is to be recorded."""
RETRY_SECONDS: Final = 0.25

log = structlog.get_logger(__name__)

BEGIN: Final = f"""
WITH taken AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS message_id, nextval('delivery_delivery_id_seq') AS delivery_id),
kept AS MATERIALIZED (
  SELECT message_id, delivery_id, CASE WHEN pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()
                                       THEN pg_logical_emit_message(true, 'ids', '') END
    FROM taken)
SELECT message_id, delivery_id, clock_timestamp(),
       {CONFIGURED}
  FROM kept CROSS JOIN (SELECT %s::bigint) AS wanted (id)
  LEFT JOIN subscriptions_subscription s ON s.id = wanted.id
  LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
"""
"""The ids that the request bears, the time, and where it goes: nulls where there is no subscription, or no more.

Nothing is stored under the ids until there is an answer, and a statement that stores nothing waits for no log: had
PostgreSQL ended before it was written, it would give them to somebody else. So where there is something to be written,
something is stored after all: an empty message for nobody, which waits.
"""

REHEARSED: Final = f"""
SELECT {CONFIGURED}, COALESCE(t.sample, ''), COALESCE(t.content_type, '')
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_eventtype t ON t.id = s.event_type_id
 WHERE s.id = %s
"""
"""Where a test event goes, and what it is, whatever the subscription's status."""

RECORD: Final = f"""
WITH published AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                outcome, deliveries_count, published_at)
  SELECT %(message_id)s, %(event_type_id)s, %(publisher_id)s::bigint, body, octet_length(body), %(content_type)s,
         %(headers)s::jsonb, %(filter_string)s, %(outcome)s, (%(subscription_id)s::bigint IS NOT NULL)::int,
         %(published_at)s
    FROM (SELECT %(body)b::bytea) AS b (body)
  RETURNING id, size),
gone AS (
  SELECT %(delivery_id)s::bigint AS id, id AS message_id, NULL::bigint AS line_id,
         %(subscription_id)s::bigint AS subscription_id, NULL::bigint AS group_id, %(status)s AS status, size,
         %(attempts)s::int AS attempts, 0 AS times_deferred, NULL::timestamptz AS due_at, NULL::bigint AS sequence,
         %(uncertain)s::bool AS uncertain, false AS cancel_requested, %(reason)s AS reason,
         %(published_at)s::timestamptz AS created_at, NULL::timestamptz AS expires_at,
         NULL::timestamptz AS not_before, NULL::bigint AS resubmit_of, NULL::bigint AS replay_id, 0 AS fetches,
         false AS unreceived
    FROM published WHERE %(subscription_id)s::bigint IS NOT NULL),
filed AS ({FILE_GONE})
INSERT INTO delivery_attempt (delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                              answer_excerpt)
SELECT id, attempts, created_at, %(duration_ms)s, %(status_code)s::int, %(error)s, %(answer_headers)b::bytea,
       %(answer_excerpt)b::bytea
  FROM gone WHERE attempts > 0
"""
"""The message, its delivery, final already, and the attempt: of them what there is."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has begun."""

    message: NewMessage
    publisher_id: int | None
    message_id: int
    delivery_id: int
    published_at: datetime
    destination: Destination | None
    """None: no subscription qualifies."""


def record(call: Call, ended: Ended) -> bool:
    """Record a call that has ended; say whether that was done.

    Once its endpoint has been asked, the answer matters more than our record: who is told that the call failed would
    repeat it, and what it does would be done twice. One that has done nothing is no call before it is recorded.

    Raises:
        django.db.Error: the endpoint has not been asked, and the call cannot be recorded.

    """
    columns = _columns(call, ended)
    if not ended.was_tried:
        rows(RECORD, columns)
        return True
    until = time.monotonic() + PATIENT_SECONDS
    while not (is_recorded := _is_recorded(call, columns)) and time.monotonic() < until:
        time.sleep(RETRY_SECONDS)
    if not is_recorded:
        log.error("sync.not_recorded", message_id=call.message_id, delivery_id=call.delivery_id, status=ended.status)
    return is_recorded


def _is_recorded(call: Call, columns: Mapping[str, object]) -> bool:
    """Try to record it; tell whether it is recorded now."""
    try:
        rows(RECORD, columns)
    except Error as failure:
        if isinstance(failure.__cause__, UniqueViolation):
            return True  # by an earlier try, whose commit was not heard of
        log.warning("sync.record_failed", message_id=call.message_id, reason=failure)
        forget_connection()
        return False
    return True


def _columns(call: Call, ended: Ended) -> dict[str, object]:
    message, destination = call.message, call.destination
    head, body = ended.head, ended.body
    if destination:
        head = destination.without_secrets(head, most=KEPT_HEADER_BYTES)
        body = destination.without_secrets(body, most=KEPT_BODY_BYTES)
    return {
        "message_id": call.message_id,
        "event_type_id": message.event_type_id,
        "publisher_id": call.publisher_id,
        "body": message.body,
        "content_type": message.content_type,
        "headers": orjson.dumps(message.headers).decode(),
        "filter_string": message.filter_string,
        "outcome": MessageOutcome.ROUTED if destination else MessageOutcome.UNROUTED,
        "published_at": call.published_at,
        "delivery_id": call.delivery_id,
        "subscription_id": destination.subscription_id if destination else None,
        "status": ended.status,
        "attempts": int(ended.was_tried),
        "uncertain": ended.is_uncertain,
        "reason": ended.reason,
        "duration_ms": ended.duration_ms,
        "status_code": ended.status_code,
        "error": ended.reason if ended.status_code is None else "",
        "answer_headers": head[:KEPT_HEADER_BYTES],
        "answer_excerpt": body[:KEPT_BODY_BYTES],
    }
