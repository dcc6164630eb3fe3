"""What callbacks are made by: our address, the keys their tokens are kept with, and how long they live."""

from dataclasses import dataclass
from typing import Final

from django.conf import settings

from broker_project.core.keyring import Keyring
from broker_project.core.reach import Reach
from broker_project.core.sealing import CALLBACK_TOKEN, keyring

MOST_DEPTH: Final = 10
"""How long a chain of callbacks may be (behaviour 6.9)."""


@dataclass(frozen=True, slots=True)
class CallbackTerms:
    """The terms of every callback."""

    public_url: str
    """What endpoints reach the broker by, without a slash at the end."""
    keys: Keyring
    """Tokens are sealed with."""
    days: int
    """How long an endpoint may take to reply, and the reply to be delivered."""
    reach: Reach
    """Where replies may go."""


def callback_terms() -> CallbackTerms:
    """Return the terms that the settings say; for interfaces, which hand them on."""
    return CallbackTerms(settings.PUBLIC_URL, keyring(CALLBACK_TOKEN), settings.CALLBACK_DAYS, settings.REACH)
