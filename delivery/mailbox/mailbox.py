"""Whose mailbox it is, what it hands out, and the receipts for that (contract 9.1, 9.4)."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple

from delivery.webhook.parts import Content
from subscriptions.models import ApiKey, Subscriber

PURPOSE: Final = b"broker.receipt"
KEY_BYTES: Final = 32
PROOF_BYTES: Final = 8
_NAMED: Final = Struct(">QI")
_BOUND: Final = Struct(">QQI")
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{27}")


class Box(NamedTuple):
    """A subscriber's mailbox: all its PULL subscriptions together."""

    subscriber_id: int
    is_ordered: bool
    """Whether at most one of its messages is in flight (contract 9.7)."""


class Receipt(NamedTuple):
    """One hand-out of a delivery."""

    delivery_id: int
    fetch: int
    """Its number: 1 is the first time that it was handed out."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A delivery that is handed out: in flight until it is acknowledged, returned or timed out."""

    delivery_id: int
    fetch: int
    """Which hand-out of it this is, from 1 on."""
    subscription_id: int
    until: datetime
    seconds: float
    """How long that is from when it was handed out: whoever gets it may have another clock."""
    content: Content
    """The message in the form that its subscription wants (contract 2.12)."""
    is_uncertain: bool
    """Whether the outcome of an earlier request is unknown: it was pushed before (contract 4.11)."""

    @property
    def receipt(self) -> Receipt:
        """What names this hand-out."""
        return Receipt(self.delivery_id, self.fetch)

    @property
    def redeliveries(self) -> int:
        """How often it had been handed out before."""
        return self.fetch - 1

    @property
    def possible_duplicate(self) -> bool:
        """Whether its subscriber may have it already."""
        return self.is_uncertain or self.redeliveries > 0


class OpenedMailbox(NamedTuple):
    """A subscriber's mailbox, and what it says of it."""

    subscriber_id: int
    is_ordered: bool
    ack_seconds: int
    max_redeliveries: int | None

    @property
    def box(self) -> Box:
        """What is fetched from."""
        return Box(self.subscriber_id, self.is_ordered)


def mailbox_named(name: str, *, key: ApiKey) -> OpenedMailbox | None:
    """Return the mailbox of the subscriber of that name; None: there is none, or it is not this key's.

    Asks nothing where the key is a subscriber's own, as that of a client is: it came with its key.
    """
    owner = key.subscriber or Subscriber.objects.filter(name=name).first()
    if owner is None or owner.name != name:
        return None
    return OpenedMailbox(owner.pk, owner.mailbox_ordered, owner.ack_seconds, owner.max_redeliveries)


def receipt_key(secret: str) -> bytes:
    """Return the key that receipts are proved with, of the installation's secret."""
    return hashlib.blake2b(secret.encode(), digest_size=KEY_BYTES, person=PURPOSE).digest()


def written(receipt: Receipt, *, subscriber_id: int, key: bytes) -> str:
    """Return the receipt as 27 characters that go into a URL and into JSON as they are."""
    bound = _BOUND.pack(subscriber_id, *receipt)
    proof = hashlib.blake2b(bound, digest_size=PROOF_BYTES, key=key, person=PURPOSE).digest()
    return base64.urlsafe_b64encode(_NAMED.pack(*receipt) + proof).decode().rstrip("=")


def read(text: str, *, subscriber_id: int, keys: Sequence[bytes]) -> Receipt | None:
    """Return the receipt that was `written` so for this subscriber under one of the keys; None: it was not."""
    if not _TEXT.fullmatch(text):
        return None
    receipt = Receipt(*_NAMED.unpack_from(base64.urlsafe_b64decode(f"{text}=")))
    ours = (written(receipt, subscriber_id=subscriber_id, key=key) for key in keys)
    return receipt if any(compare_digest(one, text) for one in ours) else None
