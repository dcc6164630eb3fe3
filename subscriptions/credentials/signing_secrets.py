"""Signing secrets as Standard Webhooks writes them: `whsec_` and the key in base64."""

import base64
import binascii
from typing import Final

from django.core.exceptions import ValidationError

PREFIX: Final = "whsec_"
MIN_KEY_BYTES: Final = 24
MAX_KEY_BYTES: Final = 64
NEW_KEY_BYTES: Final = 32


def secret_of(key: bytes) -> str:
    """Return the secret's text for the random bytes `key`."""
    return PREFIX + base64.b64encode(key).decode()


def key_of(secret: str) -> bytes:
    """Return the bytes that sign.

    Raises:
        ValidationError: the secret is not `whsec_` and base64 of 24 to 64 bytes.

    """
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


def validate_secret(secret: str) -> None:
    """Raise `ValidationError` unless `secret` can sign."""
    key_of(secret)
