"""Standard Webhooks signatures: HMAC-SHA256 over id, timestamp and the exact body."""

import base64
import hashlib
import hmac


def signature(key: bytes, *, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Return the `webhook-signature` value, `v1,` and base64, for a body sent at `timestamp` (Unix seconds)."""
    signed = b"%s.%d.%s" % (webhook_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
