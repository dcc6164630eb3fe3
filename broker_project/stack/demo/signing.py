"""How a receiver checks a Standard Webhooks signature, in the few lines that any receiver needs."""

import base64
import hashlib
import hmac
from collections.abc import Mapping

PREFIX = "whsec_"


def is_signed(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Say whether one of the signatures in the headers fits the body."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    headers = {name.lower(): value for name, value in headers.items()}
    content = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return any(hmac.compare_digest(expected, given) for given in headers.get("webhook-signature", "").split())
