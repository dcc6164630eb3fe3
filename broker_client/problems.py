"""What the broker answers where it does not do what it was asked for."""

import contextlib
from collections.abc import Iterator, Mapping
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
    return Refused(answer.status_code, f"{text} {'; '.join(_errors(known))}".rstrip(), retry_after(answer))


def _errors(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with each field, or parameter, as a problem document of the broker says it."""
    errors = document.get("errors")
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, dict) and "detail" in error:
            place = str(error.get("parameter") or error.get("pointer") or "").lstrip("#/")
            yield f"{place}: {error['detail']}" if place else str(error["detail"])


def retry_after(answer: requests.Response) -> float | None:
    """Return how long the broker asks to wait: it says so in seconds."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None
