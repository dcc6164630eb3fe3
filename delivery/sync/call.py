"""SYNC: ask the one endpoint that qualifies, record the call, and hand its answer to the publisher (contract 7)."""

import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Final

import orjson
import structlog

from broker_project.core.db import give_connection_back, rows
from delivery.publish.store import NewMessage
from delivery.statuses import DeliveryStatus
from delivery.sync.answer import Ended, ended_by, ended_by_script, undecided
from delivery.sync.caller import Caller
from delivery.sync.record import BEGIN, Call, record
from delivery.webhook.destination import destination_now
from delivery.webhook.headers_policy import forwarded, merged
from delivery.webhook.parts import Content, Numbers
from delivery.webhook.request import webhook_request
from delivery.webhook.transform import job_for
from subscriptions.matching import Match, subscriptions_to_ask

NOTHING: Final = Ended(status_code=200, was_tried=False)
"""What comes of a call that nobody is there for."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Called:
    """What a publisher is answered."""

    ended: Ended
    message_id: int
    """Under which it is recorded; 0: it could not be."""
    is_routed: bool


def call(message: NewMessage, *, publisher_id: int | None, caller: Caller) -> Called:
    """Ask the subscription that qualifies, the one created first of several, and return what it answered.

    Recorded before it returns or raises.

    Raises:
        CallFailed: there is no answer to hand on.

    """
    found = subscriptions_to_ask(message)
    with caller.place(found[0].subscription_id) if found else nullcontext():
        begun = _begun(message, publisher_id, found)
        _tell_of_several(begun, found)
        ended = _ended(begun, found, caller)
        message_id = begun.message_id if record(begun, ended) else 0
    if ended.status is DeliveryStatus.FAILED:
        log.info("sync.not_taken", message_id=message_id, delivery_id=begun.delivery_id, status_code=ended.status_code)
    if ended.failure:
        ended.failure.message_id = message_id
        raise ended.failure
    return Called(ended, message_id, is_routed=begun.destination is not None)


def _begun(message: NewMessage, publisher_id: int | None, found: list[Match]) -> Call:
    wanted = found[0].subscription_id if found else None
    ((message_id, delivery_id, now, *columns),) = rows(BEGIN, [wanted])
    destination = None if columns[0] is None else destination_now(*columns)
    return Call(message, publisher_id, message_id, delivery_id, now, destination)


def _tell_of_several(begun: Call, found: list[Match]) -> None:
    """Log an error that names all that qualify, where there should be one (contract 7.1)."""
    qualify = [match.subscription_id for match in found if not match.failure]
    if len(qualify) > 1:
        log.error(
            "sync.several_qualify",
            event_type=begun.message.event_type,
            message_id=begun.message_id,
            subscription_ids=qualify,
            asked=found[0].subscription_id,
        )


def _ended(begun: Call, found: list[Match], caller: Caller) -> Ended:
    if begun.destination is None:
        return NOTHING
    if found[0].failure:
        return undecided(found[0].subscription_id, found[0].failure)
    content = _content_of(begun)
    if begun.destination.script:
        job, started = job_for(begun.delivery_id, content, begun.destination), time.monotonic()
        result = caller.run_script(job, before_waiting=give_connection_back)
        duration_ms = round((time.monotonic() - started) * 1000)
        return ended_by_script(
            result,
            subscription_id=begun.destination.subscription_id,
            content_type=content.content_type,
            duration_ms=duration_ms,
        )
    numbers = Numbers(begun.delivery_id, sequence=None, attempt=1, possible_duplicate=False)
    request = webhook_request(content, begun.destination, numbers, timestamp=int(time.time()))
    return ended_by(caller.ask(request, before_waiting=give_connection_back), max_bytes=caller.max_answer_bytes)


def _content_of(begun: Call) -> Content:
    message = begun.message
    going_on = merged(dict(forwarded(message.headers)), {"Content-Type": message.content_type})
    return Content(
        message_id=begun.message_id,
        event_type=message.event_type,
        body=message.body,
        headers=tuple(going_on.items()),
        content_type=message.content_type,
        stored_headers=orjson.dumps(message.headers).decode(),
        published_ms=int(begun.published_at.timestamp() * 1000),
    )
