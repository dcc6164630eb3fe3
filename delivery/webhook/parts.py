"""What a request is made of: the message's content, its destination, and the delivery."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from delivery.retry import TEAMFORGE_POLICY, CompiledRetryPolicy
from subscriptions.endpoints import DEFAULT_TIMEOUT_SECONDS
from subscriptions.payload_format import PayloadFormat

WEBHOOK_ID_PREFIX: Final = "dlv_"
GROUP_ID_PREFIX: Final = "grp_"
EMPTY_BYTES: Final = 512
"""Memory of a content without body and headers."""

Headers = tuple[tuple[str, str], ...]


@dataclass(slots=True, weakref_slot=True)
class Content:
    """What is delivered of a message."""

    message_id: int
    """0: it is not stored."""
    event_type: str
    body: bytes
    headers: Headers
    """The publisher's headers that are forwarded, and the content type."""
    content_type: str = ""
    stored_headers: str = "[]"
    """All headers that were kept, as JSON pairs of name and value."""
    published_ms: int = 0
    """In milliseconds since 1970."""
    url: str = ""
    """Its destination where a script has appended to the destination's own URL."""
    known_as: str = ""
    """Its id where it is not stored."""

    @property
    def size(self) -> int:
        """The memory it takes, in bytes, roughly."""
        headers = sum(len(name) + len(value) for name, value in self.headers)
        return EMPTY_BYTES + len(self.body) + len(self.stored_headers) + headers


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Destination:
    """Where one subscription's deliveries go, as configured at `config_version`; equal only to itself."""

    subscription_id: int
    config_version: int
    """Sum of the subscription's and the subscriber's version: changes whenever either does."""
    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    """The subscriber's, overridden by the subscription's."""
    signing_key: bytes = b""
    """Empty: not signed. So are replies to callbacks, whose receivers have no secret of ours."""
    script: str = ""
    """JavaScript that makes what is sent; empty: the message is sent as it is."""
    policy: CompiledRetryPolicy = TEAMFORGE_POLICY
    spacing: float | None = None
    """Minimum seconds between two requests; None: no rate limit (contract 1.4)."""
    timeout_seconds: int = DEFAULT_TIMEOUT_SECONDS
    """How long its endpoint may take for an answer (contract 4.8)."""
    output: str = PayloadFormat.AS_PUBLISHED
    """The payload format (contract 2.12)."""
    half_open: bool = False
    """Whether it is suspended and probed with the next delivery (contract 5.6)."""
    concurrency: int = 1
    """How many requests its subscriber's main line may have in flight (contract 4.13)."""
    is_keyed: bool = False
    """Whether of these no two have the same ordering key (contract 4.18)."""
    former_keys: tuple[tuple[bytes, int], ...] = ()
    """Keys that sign too, each until a time in Unix seconds."""


@dataclass(slots=True)
class Outgoing:
    """A delivery that its line may send next."""

    id: int
    content: Content
    destination: Destination
    attempts: int
    """The requests made so far."""
    sequence: int | None
    uncertain: bool
    size: int
    is_deferred: bool
    times_deferred: int
    group_id: int | None = None
    """Its QUEUE group; attempts and uncertainty are then the group's."""
    marked_as: int | None = None
    """The number under which it was marked as IN_FLIGHT with its page; None: it is marked when it is sent."""
    callback_url: str = ""
    ordering_key: str = ""

    @property
    def webhook_id(self) -> str:
        """The id of its requests: that of its QUEUE group, whichever endpoint they go to, or its own."""
        return f"{WEBHOOK_ID_PREFIX}{self.id}" if self.group_id is None else f"{GROUP_ID_PREFIX}{self.group_id}"
