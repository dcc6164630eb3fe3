"""Encrypt what must not be readable where it is stored: AES-256-GCM under keys derived from the secret key."""

import hashlib
import os
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 4
NONCE_BYTES: Final = 12

SUBSCRIBER_HEADERS: Final = "subscriber headers"
SUBSCRIPTION_HEADERS: Final = "subscription headers"
CALLBACK_TOKEN: Final = "callback token"  # noqa: S105 - what it is for
FORMER_SECRET: Final = "former signing secret"  # noqa: S105 - what it is for
SIGNING_SECRET: Final = "signing secret"  # noqa: S105 - what it is for


class CannotBeOpened(Exception):
    """It was sealed under a key that is gone, or at another place, or is damaged."""


class Keyring:
    """The keys for one purpose, such as `"signing secret"`: the first secret seals, each of them opens.

    What is sealed is bound to its `place`, such as `"subscription 7"`: copied to another it does not open. One purpose
    cannot open what was sealed for another.
    """

    def __init__(self, secrets: Sequence[str], purpose: str) -> None:
        self._secrets = secrets
        self._purpose = purpose

    def seal(self, plain: bytes, place: str) -> bytes:
        """Return what is kept of `plain`; another each time."""
        nonce = os.urandom(NONCE_BYTES)  # the one thing here that is not computed: whoever chose it could repeat it
        return self.present_id + nonce + self._keys[self.present_id].encrypt(nonce, plain, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """Return what was sealed.

        Raises:
            CannotBeOpened: no secret of this keyring does, at this place.

        """
        key = self._keys.get(sealed[:KEY_ID_BYTES])
        nonce, ciphertext = sealed[KEY_ID_BYTES:][:NONCE_BYTES], sealed[KEY_ID_BYTES + NONCE_BYTES :]
        if key is None or len(nonce) < NONCE_BYTES:
            raise CannotBeOpened
        try:
            return key.decrypt(nonce, ciphertext, place.encode())
        except InvalidTag:
            raise CannotBeOpened from None

    @cached_property
    def present_id(self) -> bytes:
        """With what every value begins that is sealed now; any other beginning needs a former secret."""
        return next(iter(self._keys))

    @cached_property
    def _keys(self) -> dict[bytes, AESGCM]:
        derived = [_derived(secret, self._purpose) for secret in self._secrets]
        return {hashlib.sha256(key).digest()[:KEY_ID_BYTES]: AESGCM(key) for key in derived}


def place_of(bound_to: int | bytes) -> str:
    """Return the place of what is bound to a row by its id, or by a hash."""
    return bound_to.hex() if isinstance(bound_to, bytes) else str(bound_to)


def _derived(secret: str, purpose: str) -> bytes:
    info = f"broker: {purpose}".encode()
    return HKDF(hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret.encode())


def keyring(purpose: str) -> Keyring:
    """Return the keys for a purpose: under `BROKER_SECRET_KEY`, and to open with, under its fallbacks."""
    return _keyring((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS), purpose)


@cache
def _keyring(secrets: Sequence[str], purpose: str) -> Keyring:
    return Keyring(secrets, purpose)
