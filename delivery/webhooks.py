"""What is sent: the HTTP request of one delivery."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from requests import PreparedRequest
from requests.structures import CaseInsensitiveDict

from delivery.forwarded_headers import merged
from delivery.signatures import signature

USER_AGENT: Final = "broker/0.1"
WEBHOOK_ID_PREFIX: Final = "dlv_"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where one subscription's deliveries go, as it was configured at `stamp`."""

    subscription_id: int
    stamp: int
    """Sum of the subscription's and the subscriber's version: changes whenever either does."""
    method: str
    url: str
    headers: Mapping[str, str]
    """The subscriber's, overridden by the subscription's."""
    signing_key: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Content:
    """What is delivered of a message."""

    message_id: int
    event_type: str
    body: bytes
    headers: Mapping[str, str]
    """Those of the publisher's headers that go on, the content type among them."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What tells one request of a delivery from another."""

    delivery_id: int
    sequence: int
    attempt: int
    possible_duplicate: bool


def webhook_request(content: Content, destination: Destination, numbers: Numbers, *, timestamp: int) -> PreparedRequest:
    """Return the signed request; broker's headers win over the subscription's, the subscriber's, the publisher's."""
    webhook_id = f"{WEBHOOK_ID_PREFIX}{numbers.delivery_id}"
    own = {
        "User-Agent": USER_AGENT,
        "webhook-id": webhook_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(
            destination.signing_key, webhook_id=webhook_id, timestamp=timestamp, body=content.body
        ),
        "Webhook-Sequence": str(numbers.sequence),
        "Webhook-Attempt": str(numbers.attempt),
        "Broker-Event-Type": content.event_type,
        "Broker-Message-Id": str(content.message_id),
    }
    if numbers.possible_duplicate:
        own["Webhook-Possible-Duplicate"] = "true"
    # Attributes set, not `.prepare()`d: that costs 34 µs a request and could only change what is already right.
    request = PreparedRequest()
    request.method = destination.method
    request.url = destination.url
    request.headers = CaseInsensitiveDict(merged(content.headers, destination.headers, own))
    request.body = content.body
    return request
