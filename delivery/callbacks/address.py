"""Callback addresses: their tokens, how those are stored, and which addresses are ours (contract 6.7, 6.10)."""

import base64
import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from django.conf import settings

from broker_project.core.egress import EgressPolicy
from broker_project.core.keyring import CALLBACK_TOKEN, Keyring, keyring, place_of

MAX_DEPTH: Final = 10
"""How long a chain of callbacks may be (contract 6.9)."""

TOKEN_BYTES: Final = 32
PATH: Final = "/api/v1/callbacks/"
"""What stands before the token in every address of ours."""

DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_TOKEN = re.compile(rf"{PATH}([A-Z0-9_-]{{43}})(?![A-Z0-9_-])", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True)
class CallbackTerms:
    """The terms of every callback."""

    public_url: str
    """What endpoints reach the broker by, without a slash at the end."""
    keys: Keyring
    """Tokens are sealed with."""
    days: int
    """How long an endpoint may take to reply, and the reply to be delivered."""
    reach: EgressPolicy
    """Where replies may go."""


def callback_terms() -> CallbackTerms:
    """Return the terms that the settings say; for interfaces, which hand them on."""
    return CallbackTerms(settings.PUBLIC_URL, keyring(CALLBACK_TOKEN), settings.CALLBACK_DAYS, settings.REACH)


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


def sealed_token(token: str, keys: Keyring) -> bytes:
    """Return what is kept of a token beside its hash."""
    return keys.seal(_bytes_of(token), place_of(hash_of(token)))


def opened_token(token_hash: bytes, sealed: bytes, keys: Keyring) -> str:
    """Return the token.

    Raises:
        CannotBeOpened: the secret it was sealed under is gone, or it is another token's.

    """
    return token_of(keys.open(sealed, place_of(token_hash)))


def _bytes_of(token: str) -> bytes:
    return base64.urlsafe_b64decode(token + "=")


def _path_of(url: str) -> str:
    """Return the path as a server may take it: decoded, without empty, `.` and `..` segments."""
    return "/" + posixpath.normpath("/" + unquote(urlsplit(url).path)).lstrip("/")


def _server_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]
