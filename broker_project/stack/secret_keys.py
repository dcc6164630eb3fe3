"""Compare the secret key of a start with that of the last one, because another key decrypts nothing that is stored.

The stack's folder has fingerprints of keys. They show whether a key is the same, and nothing else about it.
"""

import hmac
import os
from typing import Final

from broker_project.stack.folders import StackSettings

KEY: Final = "BROKER_SECRET_KEY"
FALLBACKS: Final = "BROKER_SECRET_KEY_FALLBACKS"
RUNNING: Final = "the running stack"
LAST: Final = "the last start"
ADVICE: Final = "docs/how-to/change-the-secret-key.md says how to change the secret key"


class WrongSecretKey(Exception):
    """The given key, and its fallbacks where they count, are not the key that encrypted the stored secrets."""


def secret_key(settings: StackSettings) -> str:
    """Return the key in the environment; otherwise a random one that is stored."""
    return os.environ[KEY] if KEY in os.environ else settings.secret("secret key")


def check_start_key(settings: StackSettings) -> None:
    """Refuse to start with a key that cannot decrypt what the last start encrypted.

    Raises:
        WrongSecretKey: the last key is neither the given key nor one of its fallbacks.

    """
    former = [key for key in os.environ.get(FALLBACKS, "").split(",") if key]
    keys = (secret_key(settings), *former)
    if settings.stored(_name_of(LAST)) not in {"", *(_fingerprint(settings, key) for key in keys)}:
        raise WrongSecretKey(
            f"{_given(settings)} not the key of the last start, whose secrets it cannot decrypt: set {KEY} to that "
            f"key, or add that key to {FALLBACKS}; {ADVICE}"
        )


def check_key(settings: StackSettings, owner: str) -> None:
    """Refuse a command with another key than that of the owner, `RUNNING` or `LAST`. Only a start may change the key.

    Raises:
        WrongSecretKey: the keys differ.

    """
    if settings.stored(_name_of(owner)) not in {"", _fingerprint(settings, secret_key(settings))}:
        raise WrongSecretKey(
            f"{_given(settings)} not the key of {owner}: set {KEY} and {FALLBACKS} as for ./broker up; {ADVICE}"
        )


def store_key(settings: StackSettings, owner: str) -> None:
    """Store the fingerprint of the current key as that of the owner.

    `RUNNING`: a stack is about to run with it. `LAST`: from now on the database has secrets encrypted with it.
    """
    settings.store(_name_of(owner), _fingerprint(settings, secret_key(settings)))


def _given(settings: StackSettings) -> str:
    return f"{KEY} is" if KEY in os.environ else f"{KEY} is not set, and the key stored in {settings.folder} is"


def _name_of(owner: str) -> str:
    """Return the name of an owner's fingerprint. An external database has its own."""
    external = os.environ.get("DATABASE_URL", "").partition("?")[0].rpartition("@")[2]
    return f"secret key of {owner}" + (f" on {external}" if external and owner == LAST else "")


def _fingerprint(settings: StackSettings, key: str) -> str:
    return hmac.digest(settings.secret("salt of fingerprints").encode(), key.encode(), "sha256").hex()
