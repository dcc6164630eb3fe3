"""The secret key that a stack is given, held against the one it had: what that has sealed, another does not open.

The folder keeps marks of keys. A mark tells whether a key is the same one, and not which.
"""

import hmac
import os
from typing import Final

from broker_project.stack.folders import Kept

KEY: Final = "BROKER_SECRET_KEY"
FALLBACKS: Final = "BROKER_SECRET_KEY_FALLBACKS"
RUNNING: Final = "mark of the secret key that runs"
LAST: Final = "mark of the last secret key"
ADVICE: Final = "docs/how-to/change-the-secret-key.md says how the secret key is changed"


class OtherSecretKey(Exception):
    """Neither the key that sealed what is stored nor, where that would do, one that names it as its fallback."""


def secret_key(kept: Kept) -> str:
    """Return the user's own key, else a random one that is kept."""
    return os.environ[KEY] if KEY in os.environ else kept.secret("secret key")


def hold_against_last_start(kept: Kept) -> None:
    """Refuse to start where what the last start has sealed could not be opened.

    Raises:
        OtherSecretKey: its key is neither the present one nor among the fallbacks.

    """
    former = [key for key in os.environ.get(FALLBACKS, "").split(",") if key]
    if kept.noted(_last()) not in {"", *(_mark(kept, key) for key in (secret_key(kept), *former))}:
        raise OtherSecretKey(
            f"{_given(kept)} not that of the last start, and what that one has sealed could not be opened: set {KEY} "
            f"to that one, or name it in {FALLBACKS}; {ADVICE}"
        )


def hold_against_running(kept: Kept) -> None:
    """Refuse what is done beside a running stack under another key.

    Raises:
        OtherSecretKey: the present key is not that of the stack.

    """
    _hold_against(kept, RUNNING, "the running stack")


def hold_against_stopped(kept: Kept) -> None:
    """Refuse what is done for a stack that does not run under another key than its last; only a start changes it.

    Raises:
        OtherSecretKey: the present key is not that of the last start.

    """
    _hold_against(kept, _last(), "the last start")


def note_start(kept: Kept) -> None:
    """Keep a mark of the key under which a stack is about to run."""
    kept.note(RUNNING, _mark(kept, secret_key(kept)))


def note_sealing(kept: Kept) -> None:
    """Keep a mark of the key under which, from now on, the stack seals what it stores in its database."""
    kept.note(_last(), _mark(kept, secret_key(kept)))


def _hold_against(kept: Kept, noted: str, whose: str) -> None:
    if kept.noted(noted) not in {"", _mark(kept, secret_key(kept))}:
        raise OtherSecretKey(
            f"{_given(kept)} not that of {whose}: set {KEY} and {FALLBACKS} as for ./broker up; {ADVICE}"
        )


def _given(kept: Kept) -> str:
    return f"{KEY} is" if KEY in os.environ else f"{KEY} is not set, and the key kept in {kept.folder} is"


def _last() -> str:
    """Return under which name the mark is kept: a database of the user's own has one of its own."""
    own = os.environ.get("DATABASE_URL", "").partition("?")[0].rpartition("@")[2]
    return f"{LAST} on {own}" if own else LAST


def _mark(kept: Kept, key: str) -> str:
    return hmac.digest(kept.secret("salt of marks").encode(), key.encode(), "sha256").hex()
