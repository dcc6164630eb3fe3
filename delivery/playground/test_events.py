"""Send a test event to an endpoint at once, outside its line; it is not stored."""

import secrets
from dataclasses import dataclass, replace
from typing import Final

from broker_project.core.db import rows
from broker_project.core.egress import EgressPolicy
from delivery.http.transfer import Answer
from delivery.limits import KEPT_HEADER_BYTES
from delivery.playground.trials import tried_content
from delivery.sync.answer import SUCCESSES
from delivery.sync.caller import Caller, get_caller
from delivery.webhook.content import Content
from delivery.webhook.destination import CONFIGURED, Destination, destination_now
from delivery.webhook.request import MAX_CREDENTIAL_BYTES, RequestIdentity, webhook_request, without_credentials
from delivery.webhook.transform import TransformRefused, job_for, transformed_content
from subscriptions.endpoints import is_scripted
from subscriptions.models import DeliveryMode, Subscription
from subscriptions.scripting.jobs import Failed, Lost, Made

DEADLINE_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 1024
MAX_WAITING: Final = 4
"""In a process: its threads are for publishers, which must not wait behind tests."""
ID_PREFIX: Final = "test_"
ID_BYTES: Final = 16
SAMPLE: Final = '{"test": true}'
"""The body if the event type has no sample."""

SUBSCRIPTION: Final = f"""
SELECT extract(epoch FROM clock_timestamp())::float8, COALESCE(t.sample, ''), COALESCE(t.content_type, ''), s.script,
       {CONFIGURED}
  FROM subscriptions_subscription s JOIN subscriptions_subscriber u ON u.id = s.subscriber_id
  LEFT JOIN subscriptions_eventtype t ON t.id = s.event_type_id
 WHERE s.id = %s
"""
"""Where a test event goes, and its example payload; the subscription may have any status."""


class NothingToSendTo(Exception):
    """The subscription has no endpoint that could be called; the text says why."""


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """The result of a test event."""

    status_code: int | None = None
    """None without an answer."""
    reason: str = ""
    """Why there was no answer; else empty."""
    duration_ms: int = 0
    answer_headers: bytes = b""
    """Status line and headers as received."""
    answer_excerpt: bytes = b""
    """The first KiB of the body."""

    @property
    def is_taken(self) -> bool:
        """Whether the endpoint answered 2xx."""
        return self.status_code in SUCCESSES


def try_endpoint(subscription: Subscription, *, egress: EgressPolicy) -> EndpointAnswer:
    """Send the sample of a subscription's event type as its deliveries are sent, and return the result.

    Its status and rate limit are ignored, and the answer has no effect.

    Raises:
        Subscription.DoesNotExist: it has just been deleted.
        NothingToSendTo: its messages are fetched, or answered by a script.
        TooManyCalls: too many test events are waiting.
    """
    if subscription.delivery_mode == DeliveryMode.PULL:
        raise NothingToSendTo("Nothing is sent to it: its messages are fetched from the subscriber's mailbox.")
    if is_scripted(subscription.endpoint):
        raise NothingToSendTo("Nothing is sent to it: its script answers. POST …/test-script tries that.")
    name = f"{ID_PREFIX}{secrets.token_hex(ID_BYTES)}"
    destination, content, now = _loaded(subscription, name)
    max_bytes = MAX_ANSWER_BYTES + MAX_CREDENTIAL_BYTES
    caller = get_caller(
        egress=egress,
        deadline_seconds=DEADLINE_SECONDS,
        max_answer_bytes=max_bytes,
        max_waiting=MAX_WAITING,
    )
    with caller.slot(subscription.pk):
        try:
            content = _as_sent(content, destination, caller)
        except TransformRefused as refused:
            return EndpointAnswer(reason=f"the script brought nothing to send: {refused}")
        identity = RequestIdentity(name, is_test=True)
        request = webhook_request(content, destination, identity, timestamp=int(now))
        return _result(caller.ask(request), destination)


def _loaded(subscription: Subscription, name: str) -> tuple[Destination, Content, float]:
    """Return where the event goes, what it is, and the database's time, in seconds since 1970."""
    found = rows(SUBSCRIPTION, [subscription.pk])
    if not found:
        raise Subscription.DoesNotExist("It has just been deleted.")
    now, sample, content_type, script, *configured = found[0]
    body, content_type = (sample, content_type) if sample else (SAMPLE, "application/json")
    headers = [("Content-Type", content_type)]
    content = tried_content(headers, content_type, body.encode(), now_ms=int(now * 1000))
    return destination_now(configured, script), replace(content, event_type=subscription.events, known_as=name), now


def _as_sent(content: Content, destination: Destination, caller: Caller) -> Content:
    """Return what is sent, after the subscription's script; raises `TransformRefused` if that brings nothing."""
    if not destination.script:
        return content
    result = caller.ask(job_for(0, content, destination))
    match result:
        case Made():
            return transformed_content(content, destination, result)
        case Failed(reason) | Lost(reason):
            raise TransformRefused(reason)
        case _:
            raise TransformRefused("no process was free to run it")


def _result(answer: Answer, destination: Destination) -> EndpointAnswer:
    head = without_credentials(answer.head, destination.headers, max_bytes=KEPT_HEADER_BYTES)
    if answer.failure:
        return EndpointAnswer(None, answer.failure.reason, answer.duration_ms, head)
    excerpt = without_credentials(answer.body, destination.headers, max_bytes=MAX_ANSWER_BYTES)
    return EndpointAnswer(answer.status, "", answer.duration_ms, head, excerpt)
