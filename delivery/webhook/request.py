"""Build the HTTP request of one delivery, and sign it (Standard Webhooks; contract 4.11)."""

import base64
import hashlib
import hmac
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from delivery.http.wire_headers import EncodedRequest, header_line
from delivery.webhook.cloud_event_output import in_payload_format
from delivery.webhook.headers_policy import merged
from delivery.webhook.parts import Content, Destination, Headers
from subscriptions.payload_format import PayloadFormat

USER_AGENT: Final = "broker/0.1"

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
"""Headers that only the broker sets."""


@dataclass(frozen=True, slots=True)
class RequestIdentity:
    """What distinguishes one request of a delivery from the others."""

    webhook_id: str
    """The same in every attempt (contract 4.11)."""
    sequence: int | None = None
    """None: it is in no line."""
    attempt: int = 1
    possible_duplicate: bool = False
    callback_url: str = ""
    """Where the endpoint may post its result."""
    is_test: bool = False
    """Whether it is a test event, which was not published."""


def webhook_request(
    content: Content, destination: Destination, identity: RequestIdentity, *, timestamp: int
) -> EncodedRequest:
    """Return the request in the subscription's payload format, signed if there is a key.

    Of equal headers, the broker's win over the subscription's, the subscriber's and the publisher's, in this order.
    """
    content = in_payload_format(content, destination.output, destination.headers)
    webhook_id = identity.webhook_id
    lines = [
        *_common_lines(content.headers, destination),
        f"webhook-id: {webhook_id}".encode(),
        f"webhook-timestamp: {timestamp}".encode(),
        f"Webhook-Attempt: {identity.attempt}".encode(),
        header_line("Broker-Event-Type", content.event_type),
    ]
    if content.message_id:
        lines.append(f"Broker-Message-Id: {content.message_id}".encode())
    if destination.signing_key:
        keys = [destination.signing_key, *(key for key, until in destination.former_keys if timestamp < until)]
        signed = [signature(key, webhook_id=webhook_id, timestamp=timestamp, body=content.body) for key in keys]
        lines.append(f"webhook-signature: {' '.join(signed)}".encode())
    if identity.sequence is not None:
        lines.append(f"Webhook-Sequence: {identity.sequence}".encode())
    if identity.callback_url:
        lines.append(header_line("CallbackURL", identity.callback_url))
    if identity.possible_duplicate:
        lines.append(b"Webhook-Possible-Duplicate: true")
    if identity.is_test:
        lines.append(b"Webhook-Test: true")
    return EncodedRequest(destination.method, content.url or destination.url, lines, content.body)


def signature(key: bytes, *, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature, `v1,` and base64, for a body sent at `timestamp` (Unix seconds)."""
    signed = b"%s.%d.%s" % (webhook_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


@lru_cache(maxsize=1024)
def _common_lines(headers: Headers, destination: Destination) -> tuple[bytes, ...]:
    """Return the header lines that are the same for all messages with these headers to one subscription."""
    # Other formats than AS_PUBLISHED contain the configured headers already.
    configured = destination.headers if destination.output == PayloadFormat.AS_PUBLISHED else {}
    layers = merged(dict(headers), configured, {"User-Agent": USER_AGENT})
    return tuple(header_line(name, value) for name, value in layers.items() if name.lower() not in OWN)
