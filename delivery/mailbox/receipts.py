"""Fetched messages and the receipts for them (contract 9.1, 9.4)."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple

from delivery.webhook.content import Content

PURPOSE: Final = b"broker.receipt"
KEY_BYTES: Final = 32
PROOF_BYTES: Final = 8
_PLAIN: Final = Struct(">QQ")
_PROVED: Final = Struct(">QQQ")
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{32}")


class MailboxRef(NamedTuple):
    """A subscriber's mailbox: all its PULL subscriptions together."""

    subscriber_id: int
    is_ordered: bool
    """Whether at most one of its messages is in flight (contract 9.7)."""


class Receipt(NamedTuple):
    """One fetch of a delivery."""

    delivery_id: int
    fetch_id: int
    """Random: no other fetch of this delivery has it, also if the database was restored and has forgotten that one."""


@dataclass(frozen=True, slots=True)
class FetchedMessage:
    """A delivery that a client has: in flight until it is acknowledged, returned or timed out."""

    delivery_id: int
    fetch_id: int
    redeliveries: int
    """Number of earlier fetches."""
    subscription_id: int
    until: datetime
    seconds: float
    """From the fetch to `until`: the client may have another clock."""
    is_uncertain: bool
    """Whether the outcome of an earlier request is unknown: it was pushed before (contract 4.11)."""
    content: Content
    """The message in the format of its subscription (contract 2.12)."""

    @property
    def receipt(self) -> Receipt:
        """The receipt of this fetch."""
        return Receipt(self.delivery_id, self.fetch_id)

    @property
    def possible_duplicate(self) -> bool:
        """Whether the subscriber may have received it before."""
        return self.is_uncertain or self.redeliveries > 0


def receipt_key(secret: str) -> bytes:
    """Derive the key that signs receipts from the installation's secret."""
    return hashlib.blake2b(secret.encode(), digest_size=KEY_BYTES, person=PURPOSE).digest()


def encode_receipt(receipt: Receipt, *, subscriber_id: int, key: bytes) -> str:
    """Return the receipt as 32 characters that are safe in URLs and JSON, signed for this subscriber."""
    return base64.urlsafe_b64encode(_PLAIN.pack(*receipt) + _proof(receipt, subscriber_id, key)).decode()


def decode_receipt(text: str, *, subscriber_id: int, keys: Sequence[bytes]) -> Receipt | None:
    """Return the receipt if it was signed for this subscriber with one of the keys, else None."""
    if not _TEXT.fullmatch(text):
        return None
    signed = base64.urlsafe_b64decode(text)
    receipt, proof = Receipt(*_PLAIN.unpack_from(signed)), signed[_PLAIN.size :]
    return receipt if any(compare_digest(_proof(receipt, subscriber_id, key), proof) for key in keys) else None


def _proof(receipt: Receipt, subscriber_id: int, key: bytes) -> bytes:
    bound = _PROVED.pack(subscriber_id, *receipt)
    return hashlib.blake2b(bound, digest_size=PROOF_BYTES, key=key, person=PURPOSE).digest()
