"""Encrypt secrets before they are stored: AES-256-GCM under keys derived from `BROKER_SECRET_KEY`, and model fields.

Every ciphertext begins with the id of its key. It is bound to its purpose, such as `"signing secret"`, and to its
place, such as a row's id: copied to another place it cannot be decrypted.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings
from django.db import models
from django.db.models.query_utils import DeferredAttribute

KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 4
NONCE_BYTES: Final = 12

SUBSCRIBER_HEADERS: Final = "subscriber headers"
SUBSCRIPTION_HEADERS: Final = "subscription headers"
CALLBACK_TOKEN: Final = "callback token"  # noqa: S105 - a purpose
FORMER_SECRET: Final = "former signing secret"  # noqa: S105 - a purpose
SIGNING_SECRET: Final = "signing secret"  # noqa: S105 - a purpose


class DecryptionFailed(Exception):
    """The key of this ciphertext is gone, the place is another one, or the bytes are damaged."""


class Keyring:
    """The keys for one purpose: the first secret encrypts, every secret decrypts."""

    def __init__(self, secrets: Sequence[str], purpose: str) -> None:
        self._secrets = secrets
        self._purpose = purpose

    def encrypt(self, plain: bytes, place: str) -> bytes:
        """Return key id, nonce and ciphertext; different bytes each time."""
        nonce = os.urandom(NONCE_BYTES)  # not an argument: a repeated nonce would break the encryption
        return self.current_id + nonce + self._keys[self.current_id].encrypt(nonce, plain, place.encode())

    def decrypt(self, encrypted: bytes, place: str) -> bytes:
        """Return what was encrypted; raise `DecryptionFailed` if no secret decrypts it at this place."""
        key = self._keys.get(encrypted[:KEY_ID_BYTES])
        nonce, ciphertext = encrypted[KEY_ID_BYTES:][:NONCE_BYTES], encrypted[KEY_ID_BYTES + NONCE_BYTES :]
        if key is None or len(nonce) < NONCE_BYTES:
            raise DecryptionFailed
        try:
            return key.decrypt(nonce, ciphertext, place.encode())
        except InvalidTag:
            raise DecryptionFailed from None

    @cached_property
    def current_id(self) -> bytes:
        """The id of the key that encrypts. Values with another id need a former secret."""
        return next(iter(self._keys))

    @cached_property
    def _keys(self) -> dict[bytes, AESGCM]:
        info = f"broker: {self._purpose}".encode()
        derived = [
            HKDF(hashes.SHA256(), length=KEY_BYTES, salt=None, info=info).derive(secret.encode())
            for secret in self._secrets
        ]
        return {hashlib.sha256(key).digest()[:KEY_ID_BYTES]: AESGCM(key) for key in derived}


def keyring(purpose: str) -> Keyring:
    """Return the keys for a purpose, of `BROKER_SECRET_KEY` and its fallbacks."""
    return _keyring((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS), purpose)


_keyring = cache(Keyring)


def place_of(bound_to: int | bytes) -> str:
    """Return the place of a value that is bound to an id or a hash."""
    return bound_to.hex() if isinstance(bound_to, bytes) else str(bound_to)


class EncryptedColumn(models.Field):  # type: ignore[type-arg]  # no brackets at run time
    """Bytes that were encrypted for `purpose`, each bound to its row's value in the column `bound_to`.

    The command `rotate_keys` finds all such columns. It skips values whose row has passed the time in the column
    `needed_until`.
    """

    empty_values = (None,)

    def __init__(self, *args: Any, purpose: str, bound_to: str = "id", needed_until: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.purpose, self.bound_to, self.needed_until = purpose, bound_to, needed_until

    def deconstruct(self) -> Any:
        """Return the arguments for migrations, which do not need `bound_to`."""
        name, path, args, options = super().deconstruct()
        return name, path, args, {**options, "purpose": self.purpose}

    def get_internal_type(self) -> str:
        """Return the field type that the database uses."""
        return "BinaryField"

    @property
    def keys(self) -> Keyring:
        """The keys of this column."""
        return keyring(self.purpose)


class _Decrypting(DeferredAttribute):
    """Decrypts at each access, so that a row in memory holds no plain secret."""

    field: "EncryptedValue"

    def __get__(self, row: models.Model | None, owner: type[models.Model] | None = None) -> Any:
        if row is None:
            return self
        value = super().__get__(row, owner)
        return self.field.decrypted(value, row) if isinstance(value, bytes) else value

    def __set__(self, row: models.Model, value: object) -> None:
        row.__dict__[self.field.attname] = value


class EncryptedValue(EncryptedColumn):
    """A text, or a subclass's value, stored encrypted. A row that was read or saved holds bytes, else the value."""

    descriptor_class = _Decrypting

    def decrypted(self, encrypted: bytes, row: models.Model) -> Any:
        """Return the value of a row; raise `DecryptionFailed` if its key is gone or the bytes belong to another row."""
        return self.from_plaintext(self.keys.decrypt(encrypted, place_of(getattr(row, self.bound_to))))

    def pre_save(self, model_instance: models.Model, add: bool) -> bytes:  # noqa: ARG002 - Django's signature
        """Return the bytes to store: encrypted now, unless the value is unchanged since it was read."""
        value = model_instance.__dict__[self.attname]
        if not isinstance(value, bytes):
            value = self.keys.encrypt(self.to_plaintext(value), place_of(getattr(model_instance, self.bound_to)))
            model_instance.__dict__[self.attname] = value
        return value

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        """Refuse plain values, such as those of `QuerySet.update`, which would be stored unencrypted."""
        if isinstance(value, str | Mapping):
            raise TypeError(f"{self.name} is stored encrypted: set it on a row and save the row.")
        return super().get_db_prep_save(value, connection)

    def to_plaintext(self, value: Any) -> bytes:
        """Return the plain bytes of a value."""
        return bytes(value.encode())

    def from_plaintext(self, plain: bytes) -> Any:
        """Return the value of plain bytes."""
        return plain.decode()
