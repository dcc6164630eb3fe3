"""What is sent: the HTTP request of one delivery."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from delivery.http.header_lines import EncodedRequest, header_line
from delivery.webhooks.forwarded_headers import merged
from delivery.webhooks.signatures import signature

USER_AGENT: Final = "broker/0.1"
WEBHOOK_ID_PREFIX: Final = "dlv_"
GROUP_ID_PREFIX: Final = "grp_"
CALLBACK_URL: Final = "CallbackURL"
OWN: Final = frozenset(
    {
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
        "webhook-sequence",
        "webhook-attempt",
        "webhook-possible-duplicate",
        "broker-event-type",
        "broker-message-id",
        "callbackurl",
    }
)
"""Headers that only the broker sets, a value for each request."""

EMPTY_BYTES: Final = 512
"""What a content without body and headers takes, with its place among the others."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """Where one subscription's deliveries go, as it was configured at `stamp`; equal only to itself."""

    subscription_id: int
    stamp: int
    """Sum of the subscription's and the subscriber's version: changes whenever either does."""
    method: str
    url: str
    headers: Mapping[str, str]
    """The subscriber's, overridden by the subscription's."""
    signing_key: bytes
    """Empty: not signed, as the replies to callbacks, whose URL is all that their receiver has given us."""
    script: str = ""
    """JavaScript that makes what is sent of the message; empty: it is sent as it is."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Content:
    """What is delivered of a message."""

    message_id: int
    event_type: str
    body: bytes
    headers: Headers
    """Those of the publisher's headers that go on, the content type among them."""
    content_type: str = ""
    stored_headers: str = "[]"
    """All that were stored, as JSON: pairs of name and value."""
    published_ms: int = 0
    """When it was published, in milliseconds since 1970."""
    url: str = ""
    """Where it goes instead of the destination's own URL: its script has appended to that."""

    @property
    def size(self) -> int:
        """What it takes of the memory, in bytes, roughly."""
        return (
            EMPTY_BYTES
            + len(self.body)
            + len(self.stored_headers)
            + sum(len(name) + len(value) for name, value in self.headers)
        )


@dataclass(frozen=True, slots=True)
class Numbers:
    """What tells one request of a delivery from another."""

    delivery_id: int
    sequence: int | None
    """None: it is in no line."""
    attempt: int
    possible_duplicate: bool
    group_id: int | None = None
    """The QUEUE group, which all its requests are known by, whichever endpoint they go to."""
    callback_url: str = ""
    """Where the endpoint may post its result."""

    @property
    def webhook_id(self) -> str:
        """What is the same in every attempt (behaviour 4.11)."""
        if self.group_id is None:
            return f"{WEBHOOK_ID_PREFIX}{self.delivery_id}"
        return f"{GROUP_ID_PREFIX}{self.group_id}"


def webhook_request(content: Content, destination: Destination, numbers: Numbers, *, timestamp: int) -> EncodedRequest:
    """Return the request, signed where there is a key.

    Broker's headers win over the subscription's, the subscriber's, the publisher's.
    """
    webhook_id = numbers.webhook_id
    lines = [
        *_lines_for_all(content.headers, destination),
        f"webhook-id: {webhook_id}".encode(),
        f"webhook-timestamp: {timestamp}".encode(),
        f"Webhook-Attempt: {numbers.attempt}".encode(),
        header_line("Broker-Event-Type", content.event_type),
        f"Broker-Message-Id: {content.message_id}".encode(),
    ]
    if destination.signing_key:
        signed = signature(destination.signing_key, webhook_id=webhook_id, timestamp=timestamp, body=content.body)
        lines.append(f"webhook-signature: {signed}".encode())
    if numbers.sequence is not None:
        lines.append(f"Webhook-Sequence: {numbers.sequence}".encode())
    if numbers.callback_url:
        lines.append(header_line(CALLBACK_URL, numbers.callback_url))
    if numbers.possible_duplicate:
        lines.append(b"Webhook-Possible-Duplicate: true")
    return EncodedRequest(destination.method, content.url or destination.url, lines, content.body)


@lru_cache(maxsize=1024)
def _lines_for_all(headers: Headers, destination: Destination) -> tuple[bytes, ...]:
    """Return the headers that do not vary between like messages of one subscription."""
    layers = merged(dict(headers), destination.headers, {"User-Agent": USER_AGENT})
    return tuple(header_line(name, value) for name, value in layers.items() if name.lower() not in OWN)
