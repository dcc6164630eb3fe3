"""What is sent: the HTTP request of one delivery."""

import base64
import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from delivery.http.headers import EncodedRequest, header_line
from delivery.webhook.cloud_event_output import enveloped
from delivery.webhook.headers_policy import merged
from delivery.webhook.parts import Content, Destination, Headers, Numbers
from subscriptions.payload_format import PayloadFormat

USER_AGENT: Final = "broker/0.1"
CALLBACK_URL: Final = "CallbackURL"


def signatures(keys: Iterable[bytes], *, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` value: a signature for each key, separated by blanks."""
    return " ".join(signature(key, webhook_id=webhook_id, timestamp=timestamp, body=body) for key in keys)


def signature(key: bytes, *, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature, `v1,` and base64, for a body sent at `timestamp` (Unix seconds)."""
    signed = b"%s.%d.%s" % (webhook_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


OWN: Final = frozenset(
    {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "webhook-sequence",
        "webhook-attempt",
        "webhook-possible-duplicate",
        "webhook-test",
        "broker-event-type",
        "broker-message-id",
        "callbackurl",
    }
)
"""Headers that only the broker sets, a value for each request."""


def webhook_request(content: Content, destination: Destination, numbers: Numbers, *, timestamp: int) -> EncodedRequest:
    """Return the request, in the form that the subscription wants, signed where there is a key.

    Broker's headers win over the subscription's, the subscriber's, the publisher's.
    """
    content = enveloped(content, destination.output, destination.headers)
    webhook_id = numbers.webhook_id
    lines = [
        *_lines_for_all(content.headers, destination),
        f"webhook-id: {webhook_id}".encode(),
        f"webhook-timestamp: {timestamp}".encode(),
        f"Webhook-Attempt: {numbers.attempt}".encode(),
        header_line("Broker-Event-Type", content.event_type),
    ]
    if content.message_id:
        lines.append(f"Broker-Message-Id: {content.message_id}".encode())
    if keys := destination.keys_at(timestamp):
        signed = signatures(keys, webhook_id=webhook_id, timestamp=timestamp, body=content.body)
        lines.append(f"webhook-signature: {signed}".encode())
    if numbers.sequence is not None:
        lines.append(f"Webhook-Sequence: {numbers.sequence}".encode())
    if numbers.callback_url:
        lines.append(header_line(CALLBACK_URL, numbers.callback_url))
    lines += numbers.flags
    return EncodedRequest(destination.method, content.url or destination.url, lines, content.body)


@lru_cache(maxsize=1024)
def _lines_for_all(headers: Headers, destination: Destination) -> tuple[bytes, ...]:
    """Return the headers that do not vary between like messages of one subscription."""
    configured = (
        destination.headers if destination.output == PayloadFormat.AS_PUBLISHED else {}
    )  # enveloping has merged them
    layers = merged(dict(headers), configured, {"User-Agent": USER_AGENT})
    return tuple(header_line(name, value) for name, value in layers.items() if name.lower() not in OWN)
