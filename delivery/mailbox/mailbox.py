"""Receipts: each names one hand-out of one delivery, to one subscriber (behaviour 9.1, 9.4).

Nothing is stored of them: a receipt bears the delivery's id, the number of the hand-out and a proof that it was given
out here, so that nobody makes one by counting, and another subscriber's says nothing.
"""

import base64
import hashlib
import re
from collections.abc import Sequence
from hmac import compare_digest
from struct import Struct
from typing import Final, NamedTuple

PURPOSE: Final = b"broker.receipt"
KEY_BYTES: Final = 32
PROOF_BYTES: Final = 8
_NAMED: Final = Struct(">QI")
_BOUND: Final = Struct(">QQI")
_TEXT: Final = re.compile(r"[A-Za-z0-9_-]{27}")


class Receipt(NamedTuple):
    """One hand-out of a delivery."""

    delivery_id: int
    fetch: int
    """Its number: 1 is the first time that it was handed out."""


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
