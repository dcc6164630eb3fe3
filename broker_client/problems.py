"""What the broker answers where it does not do what it was asked for."""

import contextlib
from typing import Any, Final

import requests

SERVER_ERROR: Final = 500
TOO_MANY_REQUESTS: Final = 429
REQUEST_TIMEOUT: Final = 408


class Refused(Exception):
    """The broker, or a proxy before it, answered with an error; the message says what is wrong."""

    def __init__(self, status: int, text: str, retry_after: float | None) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.retry_after = retry_after
        """Seconds after which to try again, if the answer says so."""

    @property
    def passes(self) -> bool:
        """Whether the same call may well be answered later: the fault is not the caller's."""
        return self.status >= SERVER_ERROR or self.status in {TOO_MANY_REQUESTS, REQUEST_TIMEOUT}


def refusal(answer: requests.Response) -> Refused:
    """Return the error that an answer is."""
    document: Any = None
    with contextlib.suppress(ValueError):
        document = answer.json()
    known = document if isinstance(document, dict) else {}
    text = known.get("detail") or known.get("title") or answer.reason
    return Refused(answer.status_code, str(text), retry_after(answer))


def retry_after(answer: requests.Response) -> float | None:
    """Return how long the broker asks to wait: it says so in seconds."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None
