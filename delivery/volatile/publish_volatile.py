"""Publish a volatile message: it travels in one Celery task and is never stored (contract 2.9)."""

import base64
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, Self
from uuid import UUID

import orjson

from broker_project.core.encryption import Keyring
from delivery.dispatch import notify
from delivery.models import VolatileOutcome
from delivery.publish.errors import TooManyDeliveries
from delivery.publish.routing import Route, log_unreceived, routes_of
from delivery.publish.store import Accepted, NewMessage
from delivery.volatile.counters import ACCEPTED, VolatileTally, get_counters

TASK: Final = "delivery.send_volatile"
PURPOSE: Final = "volatile message"
"""The purpose of the keys that envelopes are encrypted with."""
ID_PREFIX: Final = "vol_"
MAX_SECONDS: Final = 3_600
"""A message that waited longer for a worker is not sent, also if its time to live is longer."""
MAX_WAITING: Final = 2_000
"""Envelopes that wait for a worker."""
MAX_WAITING_BYTES: Final = 192 * 1024 * 1024
"""Of those, if all were as large as the next one. They take a third more of Redis: about 250 MB."""


class VolatileUnavailable(Exception):
    """Redis is away, or too many messages wait for workers. It may have been sent, if only Redis's answer was lost."""


class NeedsMailbox(Exception):
    """A qualifying subscription has a mailbox, where only stored messages can wait (contract 2.9, 9.1)."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """A volatile message and its subscriptions, as they travel; encrypted, since Redis and Flower show tasks."""

    id: str
    """`vol_` and 32 hexadecimal digits."""
    event_type_id: int
    event_type: str
    body: bytes
    content_type: str
    headers: Sequence[Sequence[str]]
    """Pairs of name and value, those that are kept."""
    subscription_ids: Sequence[int]
    published_ms: int
    """In milliseconds since 1970, by the clock of the process that published it."""
    expires_ms: int
    """It is not sent from then on; in milliseconds since 1970."""

    @classmethod
    def decrypted(cls, envelope_id: str, encrypted: str, keys: Keyring) -> Self:
        """Return what was encrypted as `envelope_id`; raise `DecryptionFailed` if these keys do not fit."""
        fields, _, body = keys.decrypt(base64.b64decode(encrypted), envelope_id).partition(b"\n")
        return cls(**orjson.loads(fields), body=body)

    def encrypted(self, keys: Keyring) -> str:
        """Return it encrypted: its fields as a line of JSON, then the body."""
        fields = asdict(self)
        body = fields.pop("body")
        return base64.b64encode(keys.encrypt(orjson.dumps(fields) + b"\n" + body, self.id)).decode()

    def is_expired(self, now: float) -> bool:
        """Return whether it is too late to send it at `now`, in seconds since 1970."""
        return now * 1000 >= self.expires_ms

    def count(self, column: str, subscription_id: int | None = None) -> None:
        """Count it, for a subscription or (None) as a message."""
        hour = self.published_ms // 3_600_000 * 3_600
        get_counters().count(VolatileTally(hour, self.event_type_id, subscription_id), column)


def envelope_of(message: NewMessage, subscription_ids: Sequence[int], *, key: UUID, now: float) -> Envelope:
    """Return the message, to be sent to these subscriptions; `now` is in seconds since 1970."""
    published_ms = int(now * 1000)
    return Envelope(
        id=f"{ID_PREFIX}{key.hex}",
        event_type_id=message.event_type_id,
        event_type=message.event_type,
        body=message.body,
        content_type=message.content_type,
        headers=message.headers,
        subscription_ids=subscription_ids,
        published_ms=published_ms,
        expires_ms=published_ms + int(min(MAX_SECONDS, message.ttl or MAX_SECONDS) * 1000),
    )


def route_of_volatile(message: NewMessage, *, max_deliveries: int) -> Route:
    """Return who qualifies for a volatile message.

    Raises:
        NeedsMailbox: one of them is a mailbox.
        TooManyDeliveries: it would be sent to more than `max_deliveries`.
    """
    (route,) = routes_of([message])
    wanting = [match for match in route.matches if not match.failure]
    if any(match.is_pulled for match in wanting):
        raise NeedsMailbox
    if len(wanting) > max_deliveries:
        raise TooManyDeliveries(len(wanting), max_deliveries)
    return route


def publish_volatile(message: NewMessage, *, key: UUID, now: float, keys: Keyring, max_deliveries: int) -> Accepted:
    """Queue a message for all subscriptions that qualify.

    `key` becomes its id, `now` is in seconds since 1970, `keys` encrypt it.

    Raises:
        NeedsMailbox, TooManyDeliveries: it is not sent.
        VolatileUnavailable: as a rule, it is not sent.
    """
    route = route_of_volatile(message, max_deliveries=max_deliveries)
    wanting = [match.subscription_id for match in route.matches if not match.failure]
    envelope = envelope_of(message, wanting, key=key, now=now)
    if wanting:
        encrypted, waiting = envelope.encrypted(keys), list[int]()
        notify.guarded(lambda: waiting.append(notify.redis_client().llen(notify.VOLATILE)))
        is_full = not waiting or waiting[0] >= min(MAX_WAITING, MAX_WAITING_BYTES // len(encrypted))  # or Redis is away
        if is_full or not notify.hint(TASK, [envelope.id, encrypted], notify.VOLATILE, shown=f"({envelope.id!r},)"):
            raise VolatileUnavailable
    envelope.count(ACCEPTED)
    for match in route.matches:
        envelope.count(ACCEPTED, match.subscription_id)
        if match.failure:
            envelope.count(VolatileOutcome.FILTERED, match.subscription_id)
    log_unreceived([envelope.id], [message], [route])
    return Accepted(0, route.outcome, len(wanting))


def is_first(envelope: Envelope) -> bool | None:
    """Return whether no worker has taken this envelope before; None: Redis does not answer.

    Celery repeats a task whose acknowledgement was lost. After `MAX_SECONDS`, when this is forgotten, nothing is sent.
    """
    answers: list[bool] = []
    key = f"broker:volatile:{envelope.id}"
    notify.guarded(lambda: answers.append(bool(notify.redis_client().set(key, 1, nx=True, ex=MAX_SECONDS))))
    return answers[0] if answers else None
