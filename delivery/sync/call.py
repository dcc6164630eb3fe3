"""Call the one endpoint that qualifies, record the call, and return the answer to the publisher (contract 7, 10.3)."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import orjson
import structlog
from django.db import Error
from psycopg.errors import UniqueViolation

from broker_project.core.db import forget_connection, rows
from delivery.filing import FILE_GONE
from delivery.http.transfer import Answer
from delivery.limits import KEPT_BODY_BYTES, KEPT_HEADER_BYTES
from delivery.models import MessageOutcome
from delivery.publish.store import NewMessage
from delivery.statuses import DELIVERY_ID_PREFIX, DeliveryStatus
from delivery.sync.answer import CallUndecided, Ended, ended_by, ended_by_script
from delivery.sync.caller import Caller
from delivery.webhook.content import content_of
from delivery.webhook.destination import CONFIGURED, Destination, destination_now
from delivery.webhook.request import RequestIdentity, webhook_request, without_credentials
from delivery.webhook.transform import job_for
from subscriptions.matching import Match, subscriptions_to_ask
from subscriptions.scripting.jobs import Result

RECORD_SECONDS: Final = 5.0
"""How long a publisher waits for an answer that is there, because the database is away: it is to be recorded."""
RETRY_SECONDS: Final = 0.25

BEGIN: Final = f"""
WITH taken AS MATERIALIZED (
  SELECT nextval('delivery_message_id_seq') AS message_id, nextval('delivery_delivery_id_seq') AS delivery_id),
kept AS MATERIALIZED (
  SELECT message_id, delivery_id, CASE WHEN pg_current_wal_insert_lsn() > pg_current_wal_flush_lsn()
                                       THEN pg_logical_emit_message(true, 'ids', '') END
    FROM taken)
SELECT message_id, delivery_id, clock_timestamp(), s.script, {CONFIGURED}
  FROM kept CROSS JOIN (SELECT %s::bigint) AS wanted (id)
  LEFT JOIN subscriptions_subscription s ON s.id = wanted.id
  LEFT JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
"""
"""The ids that the request carries, the time, and the subscription; nulls if it is None or deleted.

Nothing is stored under the ids until there is an answer. If PostgreSQL crashed before its log was written, it would
give them out again. So, if the log has unwritten entries, an empty log message is committed, which waits for them. A
call's delivery never waits for its turn, so no floor concerns it, as `next_delivery_id()` would provide for.
"""

RECORD: Final = f"""
WITH published AS (
  INSERT INTO delivery_message (id, event_type_id, publisher_id, body, size, content_type, headers, filter_string,
                                outcome, deliveries_count, published_at)
  SELECT %(message_id)s, %(event_type_id)s, %(publisher_id)s::bigint, body, octet_length(body), %(content_type)s,
         %(headers)s::jsonb, %(filter_string)s, %(outcome)s, (%(subscription_id)s::bigint IS NOT NULL)::int,
         %(published_at)s
    FROM (SELECT %(body)s::bytea) AS b (body)
  RETURNING id, size),
gone AS (
  SELECT %(delivery_id)s::bigint AS id, id AS message_id, NULL::bigint AS line_id,
         %(subscription_id)s::bigint AS subscription_id, NULL::bigint AS group_id, %(status)s AS status, size,
         %(attempts)s::int AS attempts, 0 AS times_deferred, 'TURN' AS waits_for, NULL::timestamptz AS due_at,
         NULL::bigint AS sequence, %(uncertain)s::bool AS uncertain, false AS cancel_requested, %(reason)s AS reason,
         %(published_at)s::timestamptz AS created_at, NULL::timestamptz AS expires_at,
         NULL::timestamptz AS not_before, NULL::bigint AS resubmit_of, NULL::bigint AS replay_id, 0 AS fetches,
         NULL::bigint AS fetch_id, false AS unreceived, NULL AS ordering_key
    FROM published WHERE %(subscription_id)s::bigint IS NOT NULL),
filed AS ({FILE_GONE})
INSERT INTO delivery_attempt (delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                              answer_excerpt)
SELECT id, attempts, created_at, %(duration_ms)s, %(status_code)s::int, %(error)s, %(answer_headers)s::bytea,
       %(answer_excerpt)s::bytea
  FROM gone WHERE attempts > 0
"""
"""Stores the message, its finished delivery if there is one, and the attempt if there was one."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Call:
    """A call that has begun."""

    message: NewMessage
    message_id: int
    delivery_id: int
    published_at: datetime
    destination: Destination | None
    """None: no subscription qualifies."""


def call(message: NewMessage, *, caller: Caller) -> tuple[Ended, int]:
    """Call the subscription that qualifies, of several the oldest; return its answer and the recorded message's id.

    It is 0 if the call could not be recorded. Raises `CallFailed` if there is no answer, which is recorded too.
    """
    found = subscriptions_to_ask(message)
    with caller.slot(found[0].subscription_id) if found else nullcontext():
        begun = _begin(message, found)
        ended = _ended(begun, found, caller)
        message_id = begun.message_id if record(begun, ended) else 0
    if ended.status is DeliveryStatus.FAILED:
        log.info("sync.not_taken", message_id=message_id, delivery_id=begun.delivery_id, status_code=ended.status_code)
    if ended.failure:
        ended.failure.message_id = message_id
        raise ended.failure
    return ended, message_id


def _begin(message: NewMessage, found: list[Match]) -> Call:
    """Take ids and load the destination; log an error if several subscriptions qualify (contract 7.1)."""
    wanted = found[0].subscription_id if found else None
    ((message_id, delivery_id, now, script, *configured),) = rows(BEGIN, [wanted])
    destination = None if script is None else destination_now(configured, script)
    qualify = [match.subscription_id for match in found if not match.failure]
    if len(qualify) > 1:
        log.error(
            "sync.several_qualify",
            event_type=message.event_type,
            message_id=message_id,
            subscription_ids=qualify,
            asked=wanted,
        )
    return Call(message, message_id, delivery_id, now, destination)


def _ended(begun: Call, found: list[Match], caller: Caller) -> Ended:
    """Return the end of a call: its endpoint's answer, its script's, or why there is none."""
    message, destination = begun.message, begun.destination
    if destination is None:
        return Ended(status_code=200, was_tried=False)
    if failure := found[0].failure:
        text = f"Subscription {destination.subscription_id} may be the one to ask, but its filter failed."
        return Ended(reason=failure, failure=CallUndecided(text), was_tried=False)
    content = content_of(
        message_id=begun.message_id,
        event_type=message.event_type,
        body=message.body,
        content_type=message.content_type,
        headers=orjson.dumps(message.headers).decode(),
        published_ms=int(begun.published_at.timestamp() * 1000),
    )
    if destination.script:
        started = time.monotonic()
        result: Result = caller.ask(job_for(begun.delivery_id, content, destination))
        duration_ms = round((time.monotonic() - started) * 1000)
        return ended_by_script(result, destination.subscription_id, content.content_type, duration_ms)
    identity = RequestIdentity(f"{DELIVERY_ID_PREFIX}{begun.delivery_id}")
    request = webhook_request(content, destination, identity, timestamp=int(begun.published_at.timestamp()))
    answer: Answer = caller.ask(request)
    return ended_by(answer, max_bytes=caller.max_answer_bytes)


def record(call: Call, ended: Ended) -> bool:
    """Record a call that has ended; return whether it is recorded.

    Once the endpoint was called, its answer matters more than our record: a publisher that gets an error repeats the
    call, and the endpoint would act twice. If it was not called, errors of the database are raised.
    """
    columns = _columns(call, ended)
    until = time.monotonic() + RECORD_SECONDS
    while True:
        try:
            rows(RECORD, columns)
        except Error as failure:
            if not ended.was_tried:
                raise
            if isinstance(failure.__cause__, UniqueViolation):
                return True  # by an earlier try, whose commit was not heard of
            log.warning("sync.record_failed", message_id=call.message_id, reason=failure)
            forget_connection()
        else:
            return True
        if time.monotonic() >= until:
            log.error(
                "sync.not_recorded", message_id=call.message_id, delivery_id=call.delivery_id, status=ended.status
            )
            return False
        time.sleep(RETRY_SECONDS)


def _columns(call: Call, ended: Ended) -> dict[str, object]:
    message, destination = call.message, call.destination
    head, body = ended.head, ended.body
    if destination:
        head = without_credentials(head, destination.headers, max_bytes=KEPT_HEADER_BYTES)
        body = without_credentials(body, destination.headers, max_bytes=KEPT_BODY_BYTES)
    return {
        "message_id": call.message_id,
        "event_type_id": message.event_type_id,
        "publisher_id": call.message.publisher_id,
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
