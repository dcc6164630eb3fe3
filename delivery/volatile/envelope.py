"""A volatile message as it travels: all of it within one Celery task, since it is stored nowhere (contract 2.9).

Sealed, since Redis and whoever watches the workers can read tasks.
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self
from uuid import UUID

import orjson

from broker_project.core.encryption import Keyring
from delivery.publish.store import NewMessage
from delivery.webhook.headers_policy import forwarded, merged
from delivery.webhook.parts import Content, Numbers

PURPOSE: Final = "volatile message"
"""What the keys are for that parcels are sealed with."""
ID_PREFIX: Final = "vol_"
MAX_SECONDS: Final = 3_600
"""A message that has waited for a worker for so long is not sent any more, whatever its time to live."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message, and for whom it is."""

    id: str
    """`vol_` and 32 hexadecimal digits: it has no number."""
    event_type_id: int
    event_type: str
    body: bytes
    content_type: str
    headers: Sequence[Sequence[str]]
    """Those that are kept: pairs of name and value."""
    subscription_ids: Sequence[int]
    published_ms: int
    """In milliseconds since 1970, by the clock of whoever took it."""
    seconds: float
    """For how long from then on it may be sent."""

    @classmethod
    def of(cls, message: NewMessage, subscription_ids: Sequence[int], *, key: UUID, now: float) -> Self:
        """Return the message, to be sent to these subscriptions; `now` is the time, in seconds since 1970."""
        return cls(
            id=f"{ID_PREFIX}{key.hex}",
            event_type_id=message.event_type_id,
            event_type=message.event_type,
            body=message.body,
            content_type=message.content_type,
            headers=message.headers,
            subscription_ids=subscription_ids,
            published_ms=int(now * 1000),
            seconds=min(MAX_SECONDS, message.ttl or MAX_SECONDS),
        )

    @classmethod
    def opened(cls, parcel_id: str, sealed: str, keys: Keyring) -> Self:
        """Return what was sealed as `parcel_id`.

        Raises:
            DecryptionFailed: with none of these keys, or it is another's.

        """
        said, _, body = keys.decrypt(base64.b64decode(sealed), parcel_id).partition(b"\n")
        return cls(**orjson.loads(said), body=body)

    def sealed(self, keys: Keyring) -> str:
        """Return it as a text that nobody reads: what it says as a line of JSON, then the body."""
        said = asdict(self)
        body = said.pop("body")
        return base64.b64encode(keys.encrypt(orjson.dumps(said) + b"\n" + body, self.id)).decode()

    @property
    def hour(self) -> int:
        """When the hour of its publishing began, in seconds since 1970."""
        return self.published_ms // 3_600_000 * 3_600

    @property
    def number(self) -> int:
        """What the randomness of its scripts begins with."""
        return int(self.id.removeprefix(ID_PREFIX), 16)

    @property
    def content(self) -> Content:
        """What is delivered of it."""
        pairs = [(name, value) for name, value in self.headers]
        going_on = merged(dict(forwarded(pairs)), {"Content-Type": self.content_type})
        return Content(
            message_id=0,
            event_type=self.event_type,
            body=self.body,
            headers=tuple(going_on.items()),
            content_type=self.content_type,
            stored_headers=orjson.dumps(pairs).decode(),
            published_ms=self.published_ms,
            known_as=self.id,
        )

    def numbers(self, subscription_id: int) -> Numbers:
        """Return what tells its one request to a subscription from all others."""
        known_as = f"{self.id}_{subscription_id}"
        return Numbers(0, sequence=None, attempt=1, possible_duplicate=False, known_as=known_as)

    def is_over(self, now: float) -> bool:
        """Tell whether it is too late to send it at `now`, in seconds since 1970."""
        return now * 1000 >= self.published_ms + self.seconds * 1000
