"""The keyrings that the settings make, one for each purpose, and what is sealed with them."""

from collections.abc import Sequence
from functools import cache
from typing import Final

from django.conf import settings

from broker_project.core.keyring import Keyring

SUBSCRIBER_HEADERS: Final = "subscriber headers"
SUBSCRIPTION_HEADERS: Final = "subscription headers"
CALLBACK_TOKEN: Final = "callback token"  # noqa: S105 - what it is for
FORMER_SECRET: Final = "former signing secret"  # noqa: S105 - what it is for
SIGNING_SECRET: Final = "signing secret"  # noqa: S105 - what it is for


def keyring(purpose: str) -> Keyring:
    """Return the keys for a purpose: under `BROKER_SECRET_KEY`, and to open with, under its fallbacks."""
    return _keyring((settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS), purpose)


@cache
def _keyring(secrets: Sequence[str], purpose: str) -> Keyring:
    return Keyring(secrets, purpose)
