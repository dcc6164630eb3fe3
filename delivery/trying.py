"""Trying a script on a message: what would be sent, and nothing is (behaviour 8.1)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from delivery.forwarded_headers import Header, forwarded, merged
from delivery.hands import InHand
from delivery.header_lines import EncodedRequest
from delivery.loading import destination_of
from delivery.models import Message
from delivery.transforms import TransformRefused, job_for, transformed
from delivery.webhooks import Content, Destination, Numbers, webhook_request
from subscriptions.endpoints import DEFAULT_METHOD
from subscriptions.models import Subscription
from subscriptions.scripts.jobs import Failed, Lost, Made
from subscriptions.scripts.once import run_once

ANYWHERE: Final = Destination(0, 0, DEFAULT_METHOD, "https://endpoint.example/endpoint", {}, b"")
"""Where what no subscription wants yet would go."""
NO_DELIVERY: Final = 0
NO_MESSAGE: Final = 0


class ScriptFailed(Exception):
    """Nothing would be sent; the text says why, and in which line."""


class ScriptsBusy(Exception):
    """Too many scripts are being tried; nothing has happened."""


def content_of(headers: Sequence[Header], content_type: str, body: bytes, *, now_ms: int) -> Content:
    """Return what would be delivered of a message with these headers, all of which are kept."""
    going_on = merged(dict(forwarded(headers)), {"Content-Type": content_type})
    stored = json.dumps(headers)
    return Content(NO_MESSAGE, "", body, tuple(going_on.items()), content_type, stored, now_ms)


def content_of_stored(message: Message) -> Content:
    """Return what is delivered of a stored message."""
    headers = [(name, value) for name, value in message.headers]
    now_ms = int(message.published_at.timestamp() * 1000)
    return content_of(headers, message.content_type, bytes(message.body), now_ms=now_ms)


def destination_with(script: str, subscription: Subscription) -> Destination:
    """Return where a subscription's deliveries go, as it is configured now, with this script instead of its own."""
    headers = [json.dumps(one) for one in (subscription.subscriber.headers, subscription.headers)]
    destination = destination_of(subscription.pk, 0, subscription.endpoint, *headers, subscription.signing_secret)
    return replace(destination, script=script)


def try_script(content: Content, destination: Destination) -> EncodedRequest:
    """Return the request that `destination`, script included, would get; it is not sent.

    Raises:
        ScriptFailed: the script fails, or what it makes cannot be sent.
        ScriptsBusy: no process was free.

    """
    match run_once(job_for(NO_DELIVERY, content, destination)):
        case Made() as made:
            return _request_of(content, destination, made)
        case Failed(reason) | Lost(reason):
            raise ScriptFailed(reason)
        case _:
            raise ScriptsBusy("Too many scripts are being tried; try again in a moment.")


def _request_of(content: Content, destination: Destination, made: Made) -> EncodedRequest:
    delivery = InHand(
        NO_DELIVERY,
        content,
        destination,
        attempts=0,
        sequence=None,
        uncertain=False,
        size=content.size,
        is_aside=False,
        times_set_aside=0,
    )
    try:
        ready = transformed(delivery, made)
    except TransformRefused as refused:
        raise ScriptFailed(str(refused)) from None
    numbers = Numbers(NO_DELIVERY, sequence=None, attempt=1, possible_duplicate=False)
    return webhook_request(ready.content, destination, numbers, timestamp=0)
