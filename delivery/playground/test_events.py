"""Rehearsing: an endpoint is sent a test event at once, outside of its line, and nothing of it is stored."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from broker_project.core.db import rows
from broker_project.core.egress import EgressPolicy
from delivery.http.transfer import Answer, RequestNotCompleted
from delivery.sync.answer import SUCCESSES
from delivery.sync.caller import Caller, running_caller
from delivery.webhook.content import content_of
from delivery.webhook.destination import CONFIGURED, destination_now
from delivery.webhook.parts import Content, Destination
from delivery.webhook.redact import MAX_CREDENTIAL_BYTES, without_credentials
from delivery.webhook.request import RequestIdentity, webhook_request
from delivery.webhook.transform import TransformRefused, job_for, transformed_content
from delivery.worker.topic import KEPT_HEADER_BYTES
from subscriptions.endpoints import is_scripted
from subscriptions.models import DeliveryMode, Subscription
from subscriptions.scripting.jobs import Failed, Lost, Made

DEADLINE_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 1024
MAX_WAITING: Final = 4
"""In a process: whose threads are for publishing, which must not wait behind those who try endpoints."""
ID_PREFIX: Final = "test_"
ID_BYTES: Final = 16
NO_DELIVERY: Final = 0
SAMPLE: Final = '{"test": true}'
"""What is sent where there is no event type, or none with a sample."""
SAMPLE_TYPE: Final = "application/json"

SUBSCRIPTION: Final = f"""
SELECT COALESCE(t.sample, ''), COALESCE(t.content_type, ''), s.script, {CONFIGURED}
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_eventtype t ON t.id = s.event_type_id
 WHERE s.id = %s
"""
"""Where a test event goes, and its example payload; the subscription may have any status."""


class NothingToSendTo(Exception):
    """The subscription has no endpoint that is sent anything; the text says what it has."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What came of a test event."""

    status_code: int | None = None
    """None: there was no answer."""
    reason: str = ""
    """Why there was none; empty: there was one."""
    duration_ms: int = 0
    answer_headers: bytes = b""
    """Status line and headers as received."""
    answer_excerpt: bytes = b""
    """The first KiB of the body."""

    @property
    def is_taken(self) -> bool:
        """Whether the endpoint answered 2xx."""
        return self.status_code in SUCCESSES


def rehearsing_caller(egress: EgressPolicy) -> Caller:
    """Return what sends this process's test events; for interfaces, which hand it on."""
    return running_caller(
        egress=egress,
        deadline_seconds=DEADLINE_SECONDS,
        max_answer_bytes=MAX_ANSWER_BYTES + MAX_CREDENTIAL_BYTES,
        max_waiting=MAX_WAITING,
    )


def rehearse(subscription: Subscription, *, caller: Caller, random_bytes: bytes, now: datetime) -> Rehearsed:
    """Send the sample of what a subscription is for as its deliveries are sent, and return what came back.

    Whether it is active or paused does not matter, nor its rate, and whatever comes back changes nothing.

    Raises:
        Subscription.DoesNotExist: it has just been deleted.
        NothingToSendTo: it is fetched from, or answered by a script.
        TooManyCalls: too many wait for their test events already.

    """
    _check(subscription)
    name = f"{ID_PREFIX}{random_bytes.hex()}"
    destination, content = _loaded(subscription, name, now)
    with caller.slot(subscription.pk):
        try:
            content = _as_sent(content, destination, caller)
        except TransformRefused as refused:
            return Rehearsed(reason=f"the script brought nothing to send: {refused}")
        numbers = RequestIdentity(NO_DELIVERY, None, 1, possible_duplicate=False, known_as=name, is_test=True)
        request = webhook_request(content, destination, numbers, timestamp=int(now.timestamp()))
        return _rehearsed(caller.ask(request), destination)


def _check(subscription: Subscription) -> None:
    if subscription.delivery_mode == DeliveryMode.PULL:
        raise NothingToSendTo("Nothing is sent to it: its messages are fetched from the subscriber's mailbox.")
    if is_scripted(subscription.endpoint):
        raise NothingToSendTo("Nothing is sent to it: its script answers. POST …/test-script tries that.")


def _loaded(subscription: Subscription, name: str, now: datetime) -> tuple[Destination, Content]:
    found = rows(SUBSCRIPTION, [subscription.pk])
    if not found:
        raise Subscription.DoesNotExist("It has just been deleted.")
    sample, content_type, script, *configured = found[0]
    body, content_type = (sample, content_type) if sample else (SAMPLE, SAMPLE_TYPE)
    content = content_of(
        message_id=0,
        event_type=subscription.events,
        body=body.encode(),
        content_type=content_type,
        headers=json.dumps([("Content-Type", content_type)]),
        published_ms=int(now.timestamp() * 1000),
        known_as=name,
    )
    return destination_now(configured, script), content


def _as_sent(content: Content, destination: Destination, caller: Caller) -> Content:
    """Return what is sent, after the subscription's script; raises `TransformRefused` if that brings nothing."""
    if not destination.script:
        return content
    result = caller.ask(job_for(NO_DELIVERY, content, destination))
    match result:
        case Made():
            return transformed_content(content, destination, result)
        case Failed(reason) | Lost(reason):
            raise TransformRefused(reason)
        case _:
            raise TransformRefused("no process was free to run it")


def _rehearsed(answer: Answer, destination: Destination) -> Rehearsed:
    result = answer.result
    head = without_credentials(answer.head, destination.headers, max_bytes=KEPT_HEADER_BYTES)
    if isinstance(result, RequestNotCompleted):
        return Rehearsed(None, result.reason, answer.duration_ms, head)
    excerpt = without_credentials(result.content, destination.headers, max_bytes=MAX_ANSWER_BYTES)
    return Rehearsed(result.status_code, "", answer.duration_ms, head, excerpt)
