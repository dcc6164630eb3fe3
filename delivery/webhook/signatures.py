"""Standard Webhooks signatures: HMAC-SHA256 over id, timestamp and the exact body."""

import base64
import hashlib
import hmac
from collections.abc import Iterable


def signatures(keys: Iterable[bytes], *, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` value: a signature for each key, separated by blanks."""
    return " ".join(signature(key, webhook_id=webhook_id, timestamp=timestamp, body=body) for key in keys)


def signature(key: bytes, *, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return one signature, `v1,` and base64, for a body sent at `timestamp` (Unix seconds)."""
    signed = b"%s.%d.%s" % (webhook_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
