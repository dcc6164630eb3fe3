"""What callbacks are made by: our address, the keys their tokens are kept with, and how long they live."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from django.conf import settings

from delivery.callbacks.tokens import TokenKeys

MOST_DEPTH: Final = 10
"""How long a chain of callbacks may be (behaviour 6.9)."""


@dataclass(frozen=True, slots=True)
class CallbackTerms:
    """The terms of every callback."""

    public_url: str
    """What endpoints reach the broker by, without a slash at the end."""
    keys: TokenKeys
    days: int
    """How long an endpoint may take to reply, and the reply to be delivered."""


def callback_terms() -> CallbackTerms:
    """Return the terms that the settings say; for interfaces, which hand them on."""
    return _terms(settings.PUBLIC_URL, (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS), settings.CALLBACK_DAYS)


@cache
def _terms(public_url: str, secrets: Sequence[str], days: int) -> CallbackTerms:
    return CallbackTerms(public_url, TokenKeys(secrets), days)
