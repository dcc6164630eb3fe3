"""Recording a SYNC call, whatever came of it (behaviour 7.2, 10.3)."""

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
from delivery.models import MessageOutcome
from delivery.publish.store import NewMessage
from delivery.sync.answer import Ended
from delivery.sync.statements import RECORD
from delivery.webhook.parts import Destination
from delivery.worker.judging import KEPT_BODY_BYTES, KEPT_HEADER_BYTES

PATIENT_SECONDS: Final = 5.0
"""How long a publisher may wait for its answer because the database is away: it was given, and is to be recorded."""
RETRY_SECONDS: Final = 0.25

log = structlog.get_logger(__name__)


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
