"""What a request is made of: the message's content, where it goes and how, and what tells it from others."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from delivery.retry import TEAMFORGE_POLICY, RetryPolicy
from delivery.webhook.redact import without_credentials
from subscriptions.payload_format import PayloadFormat

WEBHOOK_ID_PREFIX: Final = "dlv_"
GROUP_ID_PREFIX: Final = "grp_"
POSSIBLE_DUPLICATE: Final = b"Webhook-Possible-Duplicate: true"
TEST: Final = b"Webhook-Test: true"
EMPTY_BYTES: Final = 512
"""What a content without body and headers takes, with its place among the others."""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Content:
    """What is delivered of a message."""

    message_id: int
    """0: it is stored nowhere."""
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
    known_as: str = ""
    """What tells it from others instead of its id, where it is stored nowhere."""

    @property
    def size(self) -> int:
        """What it takes of the memory, in bytes, roughly."""
        return (
            EMPTY_BYTES
            + len(self.body)
            + len(self.stored_headers)
            + sum(len(name) + len(value) for name, value in self.headers)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Destination:
    """Where one subscription's deliveries go, as it was configured at `config_version`; equal only to itself."""

    subscription_id: int
    config_version: int
    """Sum of the subscription's and the subscriber's version: changes whenever either does."""
    method: str
    url: str
    headers: Mapping[str, str]
    """The subscriber's, overridden by the subscription's."""
    signing_key: bytes
    """Empty: not signed, as the replies to callbacks, whose URL is all that their receiver has given us."""
    script: str = ""
    """JavaScript that makes what is sent of the message; empty: it is sent as it is."""
    policy: RetryPolicy = TEAMFORGE_POLICY
    """What is done about deliveries that are not taken."""
    spacing: float | None = None
    """Seconds between two requests at least; None: not limited (contract 1.4)."""
    output: str = PayloadFormat.AS_PUBLISHED
    """In which form the message is sent (contract 2.12)."""
    half_open: bool = False
    """Whether it is suspended, and tried with the next delivery (contract 5.6)."""
    concurrency: int = 1
    """How many requests its subscriber's main line may have under way (contract 4.13)."""
    former_keys: tuple[tuple[bytes, int], ...] = ()
    """What signs too, each until a time in Unix seconds."""

    def keys_at(self, timestamp: int) -> list[bytes]:
        """Return what signs a request that is sent at `timestamp`, the present key first."""
        former = [key for key, until in self.former_keys if timestamp < until]
        return [self.signing_key, *former] if self.signing_key else []

    def without_secrets(self, answer: bytes, *, most: int) -> bytes:
        """Return the first `most` bytes of an answer, without the credentials of configured headers that it repeats."""
        return without_credentials(answer, self.headers, most=most)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A delivery that its line may send next."""

    id: int
    content: Content
    destination: Destination
    attempts: int
    """How many requests it has had."""
    sequence: int | None
    uncertain: bool
    size: int
    is_deferred: bool
    """Whether it waits among those set aside."""
    times_deferred: int
    group_id: int | None = None
    """The QUEUE group it is one of; attempts and uncertainty are then the group's."""
    callback_url: str = ""


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
    known_as: str = ""
    """What the request is known by instead, where there is no delivery."""
    is_test: bool = False
    """Whether it is a test event, which nobody has published."""

    @property
    def flags(self) -> list[bytes]:
        """What is only sent where it is so, as libcurl takes it."""
        flags = [POSSIBLE_DUPLICATE] if self.possible_duplicate else []
        return [*flags, TEST] if self.is_test else flags

    @property
    def webhook_id(self) -> str:
        """What is the same in every attempt (contract 4.11)."""
        if self.known_as:
            return self.known_as
        if self.group_id is None:
            return f"{WEBHOOK_ID_PREFIX}{self.delivery_id}"
        return f"{GROUP_ID_PREFIX}{self.group_id}"
