"""Compare the secret key of a start with that of the last one, because another key decrypts nothing that is stored.

The stack's folder has fingerprints of keys. They show whether a key is the same, and nothing else about it.
"""

import hmac
import os
from typing import Final

from broker_project.stack.folders import StackError, StackSettings

KEY: Final = "BROKER_SECRET_KEY"
FALLBACKS: Final = "BROKER_SECRET_KEY_FALLBACKS"
RUNNING: Final = "the running stack"
LAST: Final = "the last start"
START_ADVICE: Final = f"set {KEY} to that key, or add that key to {FALLBACKS}"
ADVICE: Final = f"set {KEY} and {FALLBACKS} as for ./broker up"


class WrongSecretKey(StackError):
    """The given key, and its fallbacks where they count, are not the key that encrypted the stored secrets."""


def secret_key(settings: StackSettings) -> str:
    """Return the key in the environment; otherwise a random one that is stored."""
    return os.environ[KEY] if KEY in os.environ else settings.secret("secret key")


def check_start_key(settings: StackSettings) -> None:
    """Raise `WrongSecretKey` if the last start's key is neither the given key nor one of its fallbacks."""
    former = [key.strip() for key in os.environ.get(FALLBACKS, "").split(",") if key]
    _check(settings, LAST, [secret_key(settings), *former], START_ADVICE)


def check_key(settings: StackSettings, owner: str = LAST) -> None:
    """Raise `WrongSecretKey` for a command with another key than the owner's: only a start may change it."""
    _check(settings, owner, [secret_key(settings)], ADVICE)


def store_key(settings: StackSettings, owner: str) -> None:
    """Store the fingerprint of the current key: `RUNNING` before set-up, `LAST` when the database may have secrets."""
    settings.store(_name(owner), _fingerprint(settings, secret_key(settings)))


def _check(settings: StackSettings, owner: str, keys: list[str], advice: str) -> None:
    if settings.stored(_name(owner)) not in {"", *(_fingerprint(settings, key) for key in keys)}:
        given = f"{KEY} is" if KEY in os.environ else f"{KEY} is not set, and the key stored in {settings.folder} is"
        raise WrongSecretKey(
            f"{given} not the key of {owner}, whose secrets it cannot decrypt: {advice}; "
            "docs/how-to/change-the-secret-key.md says how to change the secret key"
        )


def _name(owner: str) -> str:
    """Return the name of the owner's fingerprint. Each external database has one of its last start."""
    external = os.environ.get("DATABASE_URL", "").partition("?")[0].rpartition("@")[2]
    return f"secret key of {owner}" + (f" on {external}" if external and owner == LAST else "")


def _fingerprint(settings: StackSettings, key: str) -> str:
    return hmac.digest(settings.secret("salt of fingerprints").encode(), key.encode(), "sha256").hex()
