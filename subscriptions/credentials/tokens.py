"""Tokens of API keys, and signing secrets as Standard Webhooks writes them."""

import base64
import binascii
import hashlib
import re
import secrets
from typing import Final

from django.core.exceptions import ValidationError

from broker_project.core.rate_limit import RecentTokens

recent_tokens: Final = RecentTokens()
"""Hashes of tokens that were valid recently: failures of other clients at the same address do not count for them."""

BEGINNING: Final = "brk_"
"""Lets people and secret scanners recognise our tokens."""
TOKEN_BYTES: Final = 32
SHOWN_CHARACTERS: Final = 12
"""Enough to tell keys apart: the beginning and 48 of the 256 bits. May be stored and shown."""
SCHEME: Final = "Bearer"
_TOKEN: Final = re.compile(rf"{BEGINNING}[A-Za-z0-9_-]{{43}}")

PREFIX: Final = "whsec_"
MIN_KEY_BYTES: Final = 24
MAX_KEY_BYTES: Final = 64
NEW_KEY_BYTES: Final = 32


def could_be_token(text: str) -> bool:
    """Return whether `text` has the form of a token; anything else need not be looked up."""
    return _TOKEN.fullmatch(text) is not None


def bearer_in(authorization: str) -> str | None:
    """Return the bearer token in a header `Authorization`, None if it has another scheme."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == SCHEME.lower() else None


def digest_of(token: str) -> bytes:
    """Return the SHA-256 under which a token is found; its 256 random bits make salt and slowness pointless."""
    return hashlib.sha256(token.encode()).digest()


def new_secret() -> str:
    """Return a new signing secret."""
    return secret_of(secrets.token_bytes(NEW_KEY_BYTES))


def secret_of(key: bytes) -> str:
    """Return the signing secret's text for its random bytes."""
    return PREFIX + base64.b64encode(key).decode()


def key_of(secret: str) -> bytes:
    """Return the bytes that sign; raise `ValidationError` for anything but a signing secret, also as its validator."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValidationError(
            f"A signing secret is '{PREFIX}' and the base64 of {MIN_KEY_BYTES} to {MAX_KEY_BYTES} random bytes.",
            code="signing_secret",
        )
    return key
