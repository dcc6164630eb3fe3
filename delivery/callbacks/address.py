"""Callback addresses: tokens, which URLs are ours, what endpoints are given (contract 6.7, 6.8)."""

import hashlib
import posixpath
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

import structlog
from django.conf import settings

from broker_project.core.db import Rows
from broker_project.core.egress import EgressPolicy
from broker_project.core.encryption import CALLBACK_TOKEN, DecryptionFailed, Keyring, keyring, place_of

MAX_DEPTH: Final = 10
"""The longest chain of callbacks (contract 6.9)."""
TOKEN_BYTES: Final = 32
PATH: Final = "/api/v1/callbacks/"
"""What comes before the token in every address of ours."""
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

TOKENS: Final = """
SELECT c.group_id, c.token_hash, c.token_sealed
  FROM unnest(%s::bigint[]) AS g (id) JOIN delivery_callback c ON c.group_id = g.id
"""
"""The tokens of groups with a callback."""


_TOKEN = re.compile(rf"{PATH}([A-Z0-9_-]{{43}})(?![A-Z0-9_-])", re.IGNORECASE | re.ASCII)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CallbackTerms:
    """What applies to every callback."""

    public_url: str
    """The address at which endpoints reach the broker, without a slash at the end."""
    keys: Keyring
    """Tokens are encrypted with these."""
    days: int
    """How long an endpoint may take to reply once its group has ended, and how long delivering the reply is tried."""
    egress: EgressPolicy
    """Where replies may go."""


def callback_terms() -> CallbackTerms:
    """Return the terms in the settings; for interfaces, which pass them on."""
    return CallbackTerms(settings.PUBLIC_URL, keyring(CALLBACK_TOKEN), settings.CALLBACK_DAYS, settings.EGRESS_POLICY)


def hash_of(token: str) -> bytes:
    """Return the SHA-256 under which a token is found; with its 256 random bits it needs no salt."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def encrypted_token(token: str, keys: Keyring) -> bytes:
    """Return what is stored of a token beside its hash."""
    return keys.encrypt(token.encode(), place_of(hash_of(token)))


def decrypted_token(token_hash: bytes, encrypted: bytes, keys: Keyring) -> str:
    """Return the token; raise `DecryptionFailed` if the secret key is gone, or it is another token's."""
    return keys.decrypt(encrypted, place_of(token_hash)).decode()


def token_in(url: str) -> str | None:
    """Return the token in an http or https URL that looks like a broker's callback address, in any spelling."""
    found = _TOKEN.search(_path_of(url))
    return found.group(1) if found else None


def is_own(url: str, public_url: str) -> bool:
    """Return whether a URL, in any spelling, is below the callback path of the broker at `public_url`."""
    home = _path_of(public_url).rstrip("/") + PATH
    return _server_of(url) == _server_of(public_url) and f"{_path_of(url)}/".lower().startswith(home.lower())


def _path_of(url: str) -> str:
    """Return the path as a server may read it: decoded, without empty, `.` and `..` segments."""
    return "/" + posixpath.normpath("/" + unquote(urlsplit(url).path)).lstrip("/")


def _server_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return (parts.hostname or "").rstrip("."), parts.port or DEFAULT_PORTS[parts.scheme]


def without_token(answer: bytes, address: str) -> bytes:
    """Return an endpoint's answer without the token of the callback `address` that it was given, if any."""
    token = address.rpartition("/")[2].encode()
    return answer.replace(token, "…".encode()) if token else answer


def callback_addresses(tokens: Rows, terms: CallbackTerms) -> dict[int, str]:
    """Return where each group's endpoint posts its result, by group, of what `TOKENS` has read.

    Empty where the token cannot be decrypted because its secret key is gone. Such a group must not be sent: its result
    would go nowhere.
    """
    addresses: dict[int, str] = {}
    for group_id, token_hash, encrypted in tokens:
        try:
            token = decrypted_token(bytes(token_hash), bytes(encrypted), terms.keys)
            addresses[group_id] = f"{terms.public_url}{PATH}{token}"
        except DecryptionFailed:
            hint = "give the former secret in BROKER_SECRET_KEY_FALLBACKS"
            log.error("callback.token_unreadable", group_id=group_id, hint=hint)  # noqa: TRY400 - the reason is known
            addresses[group_id] = ""
    return addresses
