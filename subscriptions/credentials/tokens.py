"""API-key tokens: `brk_` and 256 random bits; what is stored of them and what is shown."""

import base64
import hashlib
import re
from typing import Final

BEGINNING: Final = "brk_"
"""Lets people and secret scanners recognise a token of ours."""

TOKEN_BYTES: Final = 32
SHOWN_CHARACTERS: Final = 12
"""Enough to tell keys apart: the prefix and 48 of the 256 bits."""

SCHEME: Final = "Bearer"
"""With which one is shown."""

_TOKEN: Final = re.compile(rf"{BEGINNING}[A-Za-z0-9_-]{{43}}")


def token_of(random_bytes: bytes) -> str:
    """Return the token's text for its random bytes."""
    return BEGINNING + base64.urlsafe_b64encode(random_bytes).decode().rstrip("=")


def could_be_token(text: str) -> bool:
    """Tell whether a key could have this token: whatever else is sent in its place need not be looked up."""
    return _TOKEN.fullmatch(text) is not None


def bearer_in(authorization: str) -> str | None:
    """Return the token that a header `Authorization` shows, None if it shows something else."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == SCHEME.lower() else None


def digest_of(token: str) -> bytes:
    """Return the SHA-256 under which a token is found; its 256 random bits make salt and slowness pointless."""
    return hashlib.sha256(token.encode()).digest()


def shown_prefix_of(token: str) -> str:
    """Return the beginning of a token that may be shown for ever."""
    return token[:SHOWN_CHARACTERS]
