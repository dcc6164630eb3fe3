"""Build the HTTP request of one delivery, and sign it (Standard Webhooks; contract 4.11)."""

from binascii import b2a_base64
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from delivery.http.transfer import EncodedRequest, header_line
from delivery.webhook.cloud_event_output import in_payload_format
from delivery.webhook.headers_policy import merged
from delivery.webhook.parts import Content, Destination, Headers
from subscriptions.payload_format import PayloadFormat

USER_AGENT: Final = "broker/0.1"
AS_PUBLISHED: Final = PayloadFormat.AS_PUBLISHED
VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""What is not percent-encoded in an ordering key."""
BLOCK_BYTES: Final = 64
"""Of SHA-256."""

OWN: Final = frozenset(
    {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "webhook-sequence",
        "webhook-ordering-key",
        "webhook-attempt",
        "webhook-possible-duplicate",
        "webhook-test",
        "broker-event-type",
        "broker-message-id",
        "callbackurl",
    }
)
"""Headers that only the broker sets."""


@dataclass(slots=True)
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
    ordering_key: str = ""
    """Within which its order counts; empty: it has none."""


def webhook_request(
    content: Content, destination: Destination, identity: RequestIdentity, *, timestamp: int
) -> EncodedRequest:
    """Return the request in the subscription's payload format, signed if there is a key.

    Of equal headers, the broker's win over the subscription's, the subscriber's and the publisher's, in this order.
    """
    if destination.output != AS_PUBLISHED:
        content = in_payload_format(content, destination.output, destination.headers)
    webhook_id, body = identity.webhook_id, content.body
    names, configured = _lines_of_destination(destination)
    lines = [line for name, line in _lines_of_content(content.headers, content.event_type) if name not in names]
    lines += configured
    lines.append(f"webhook-id: {webhook_id}".encode())
    lines.append(f"webhook-timestamp: {timestamp}".encode())
    lines.append(f"Webhook-Attempt: {identity.attempt}".encode())
    if content.message_id:
        lines.append(f"Broker-Message-Id: {content.message_id}".encode())
    if destination.signing_key:
        signed = f"{webhook_id}.{timestamp}.".encode()
        line = b"webhook-signature:"
        for key, until in ((destination.signing_key, None), *destination.former_keys):
            if until is None or timestamp < until:
                inner, outer = _hmac_states(key)
                inner, outer = inner.copy(), outer.copy()
                inner.update(signed + body)
                outer.update(inner.digest())
                line += b" v1," + b2a_base64(outer.digest(), newline=False)
        lines.append(line)
    if identity.sequence is not None:
        lines.append(f"Webhook-Sequence: {identity.sequence}".encode())
    if identity.callback_url or identity.possible_duplicate or identity.is_test or identity.ordering_key:
        lines += _rare_lines(identity)
    return EncodedRequest(destination.method, content.url or destination.url, lines, body)


def _rare_lines(identity: RequestIdentity) -> Iterator[bytes]:
    if identity.ordering_key:
        yield f"Webhook-Ordering-Key: {quote(identity.ordering_key, safe=VISIBLE)}".encode()
    if identity.callback_url:
        yield header_line("CallbackURL", identity.callback_url)
    if identity.possible_duplicate:
        yield b"Webhook-Possible-Duplicate: true"
    if identity.is_test:
        yield b"Webhook-Test: true"


@lru_cache(maxsize=16_384)
def _hmac_states(key: bytes) -> tuple[Any, Any]:
    """Return SHA-256 after the inner and the outer key of HMAC (RFC 2104): copies of them sign in half the time."""
    padded = (key if len(key) <= BLOCK_BYTES else sha256(key).digest()).ljust(BLOCK_BYTES, b"\0")
    return sha256(bytes(byte ^ 0x36 for byte in padded)), sha256(bytes(byte ^ 0x5C for byte in padded))


@lru_cache(maxsize=1024)
def _lines_of_content(headers: Headers, event_type: str) -> tuple[tuple[str, bytes], ...]:
    """Return the header lines of all messages with these headers, each with its name in lower case."""
    lines = {name.lower(): header_line(name, value) for name, value in headers if name.lower() not in OWN}
    return *lines.items(), ("broker-event-type", header_line("Broker-Event-Type", event_type))


@lru_cache(maxsize=16_384)
def _lines_of_destination(destination: Destination) -> tuple[frozenset[str], tuple[bytes, ...]]:
    """Return the header lines of all requests to a subscription, and their names in lower case."""
    # Other formats than AS_PUBLISHED contain the configured headers already.
    configured = destination.headers if destination.output == AS_PUBLISHED else {}
    layers = merged(configured, {"User-Agent": USER_AGENT})
    kept = {name.lower(): header_line(name, value) for name, value in layers.items() if name.lower() not in OWN}
    return frozenset(kept), tuple(kept.values())
