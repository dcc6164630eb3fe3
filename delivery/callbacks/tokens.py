"""The addresses that endpoints reply to: their tokens, how those are kept, and which address is one of ours (6.10).

A token is looked up by its hash and kept encrypted by AES-256-GCM, whose nonce is that hash: unique as the token is,
and what was stored for one token never opens as another. Fernet takes 35 µs to open one, this 1.4.
"""

import base64
import hashlib
import posixpath
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final
from urllib.parse import unquote, urlsplit

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

TOKEN_BYTES: Final = 32
PATH: Final = "/api/v1/callbacks/"
"""What stands before the token in every address of ours."""
PURPOSE: Final = b"broker.callback_token"
KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 4
"""Tells which of the keys a token was encrypted with."""

DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_TOKEN = re.compile(rf"{PATH}([A-Z0-9_-]{{43}})(?![A-Z0-9_-])", re.IGNORECASE | re.ASCII)


class TokenUnreadable(Exception):
    """A stored token was encrypted with a key that is not among ours any more."""


def token_of(random_bytes: bytes) -> str:
    """Return the token's text for its random bytes."""
    return base64.urlsafe_b64encode(random_bytes).decode().rstrip("=")


def hash_of(token: str) -> bytes:
    """Return the SHA-256 under which a token is found; its 256 random bits make salt and slowness pointless."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def address_of(token: str, public_url: str) -> str:
    """Return where the endpoint posts its result."""
    return f"{public_url}{PATH}{token}"


def token_in(url: str) -> str | None:
    """Return the token that an http or https URL, however spelt, bears where an address of a broker has it."""
    found = _TOKEN.search(_path_of(url))
    return found.group(1) if found else None


def is_own(url: str, public_url: str) -> bool:
    """Tell whether an http or https URL, however spelt, is where the broker at `public_url` takes replies."""
    home = _path_of(public_url).rstrip("/") + PATH
    return _server_of(url) == _server_of(public_url) and f"{_path_of(url)}/".lower().startswith(home.lower())


def without_token(answer: bytes, address: str) -> bytes:
    """Return what an endpoint answered without the token of the `address` it was given; empty: it was given none."""
    token = address.rpartition("/")[2].encode()
    return answer.replace(token, "…".encode()) if token else answer


class TokenKeys:
    """The keys that tokens are kept with: new ones under the first secret, older ones are read under any."""

    def __init__(self, secrets: Sequence[str]) -> None:
        self._secrets = secrets

    def seal(self, token: str) -> bytes:
        """Return what is stored of a token beside its hash."""
        key_id, key = next(iter(self._keys.items()))
        return key_id + key.encrypt(hash_of(token), _bytes_of(token), None)

    def open(self, token_hash: bytes, sealed: bytes) -> str:
        """Return the token.

        Raises:
            TokenUnreadable: the secret it was kept under is gone, or something else was stored.

        """
        key = self._keys.get(sealed[:KEY_ID_BYTES])
        if key is None:
            raise TokenUnreadable
        try:
            return token_of(key.decrypt(token_hash, sealed[KEY_ID_BYTES:], None))
        except InvalidTag:
            raise TokenUnreadable from None

    @cached_property
    def _keys(self) -> dict[bytes, AESGCM]:
        derived = [_derived(secret) for secret in self._secrets]
        return {hashlib.sha256(key).digest()[:KEY_ID_BYTES]: AESGCM(key) for key in derived}


def _derived(secret: str) -> bytes:
    return HKDF(hashes.SHA256(), length=KEY_BYTES, salt=None, info=PURPOSE).derive(secret.encode())


def _bytes_of(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=")


def _path_of(url: str) -> str:
    """Return the path as a server may take it: decoded, without empty, `.` and `..` segments."""
    return "/" + posixpath.normpath("/" + unquote(urlsplit(url).path)).lstrip("/")


def _server_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]
