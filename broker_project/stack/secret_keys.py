"""Compare the secret key of a start with that of the last one, because another key decrypts nothing that is stored.

The stack's folder has fingerprints of keys. They show whether a key is the same, and nothing else about it.
"""

import hmac
import os
from typing import Final

from broker_project.stack.folders import StackError, StackSettings

KEY: Final = "BROKER_SECRET_KEY"
FALLBACKS: Final = "BROKER_SECRET_KEY_FALLBACKS"
START_ADVICE: Final = f"set {KEY} to that key, or add that key to {FALLBACKS}"
ADVICE: Final = f"set {KEY} and {FALLBACKS} as for ./broker up"


class WrongSecretKey(StackError):
    """The given key, and its fallbacks where they count, are not the key that encrypted the stored secrets."""


def secret_key(settings: StackSettings) -> str:
    """Return the key in the environment; otherwise a random one that is stored."""
    return os.environ[KEY] if KEY in os.environ else settings.secret("secret key")


def check_start_key(settings: StackSettings) -> None:
    """Raise `WrongSecretKey` if the last start's key is neither the given key nor one of its fallbacks."""
    former = [key for key in os.environ.get(FALLBACKS, "").split(",") if key]
    _check(settings, [secret_key(settings), *former], START_ADVICE)


def check_key(settings: StackSettings) -> None:
    """Raise `WrongSecretKey` for a command with another key than that of the last start: only a start may change it."""
    _check(settings, [secret_key(settings)], ADVICE)


def store_key(settings: StackSettings) -> None:
    """Store the fingerprint of the current key: from now on the database has secrets encrypted with it."""
    settings.store(_name(), _fingerprint(settings, secret_key(settings)))


def _check(settings: StackSettings, keys: list[str], advice: str) -> None:
    if settings.stored(_name()) not in {"", *(_fingerprint(settings, key) for key in keys)}:
        given = f"{KEY} is" if KEY in os.environ else f"{KEY} is not set, and the key stored in {settings.folder} is"
        raise WrongSecretKey(
            f"{given} not the key of the last start, whose secrets it cannot decrypt: {advice}; "
            "docs/how-to/change-the-secret-key.md says how to change the secret key"
        )


def _name() -> str:
    """Return the name of the fingerprint. An external database has its own."""
    external = os.environ.get("DATABASE_URL", "").partition("?")[0].rpartition("@")[2]
    return "secret key of the last start" + (f" on {external}" if external else "")


def _fingerprint(settings: StackSettings, key: str) -> str:
    return hmac.digest(settings.secret("salt of fingerprints").encode(), key.encode(), "sha256").hex()
