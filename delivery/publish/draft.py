"""What publishers send, before anything is looked up: what is wrong with it can be told by itself (behaviour 2)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.core.exceptions import ValidationError

from delivery.publish.errors import InvalidMetadata, UnsuitableCallback
from subscriptions.endpoints import parse_endpoint
from subscriptions.names import is_name

MOST_KEY_CHARACTERS: Final = 255
MOST_HEADERS: Final = 100
MOST_HEADER_CHARACTERS: Final = 32 * 1024
"""All of a message's headers together: what an endpoint could not take would hold its line for ever."""

_PRINTABLE = re.compile(r"[\x21-\x7e]{1,255}")
_CONTENT_TYPE = re.compile(r"[\x21-\x7e][\x20-\x7e]{0,254}")
_FILTER_STRING = re.compile(r"[\t\x20-\x7e]{1,4096}")
_ABSOLUTE = re.compile("https?://", re.IGNORECASE)
_WITH_LOGIN = re.compile("https?://[^/?#]*@", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]{0,8192}")


@dataclass(frozen=True, slots=True)
class Draft:
    """One message as a publisher sent it, not looked at yet."""

    event_type: str
    body: bytes
    content_type: str | None = None
    """None: not said; the event type's."""
    headers: Sequence[tuple[str, str]] = ()
    filter_string: str | None = None
    idempotency_key: str | None = None
    callback_url: str | None = None
    """Where the result of a QUEUE message is to be posted (behaviour 6.7)."""
    destination: str | None = None
    """The subscriber that it is for, or `default`: one for each; None: whoever qualifies (behaviour 2.8)."""
    ttl: float | None = None
    """Seconds after which it is not sent any more (behaviour 2.10)."""
    not_before: datetime | None = None
    """Before when it is not sent (behaviour 2.13)."""


def check_metadata(draft: Draft) -> None:
    """Raise `InvalidMetadata` or `UnsuitableCallback` for what is unusable beside the body, whatever the event type."""
    if draft.idempotency_key is not None and not _PRINTABLE.fullmatch(draft.idempotency_key):
        raise InvalidMetadata(
            f"An idempotency key has 1 to {MOST_KEY_CHARACTERS} visible ASCII characters without blanks."
        )
    if draft.filter_string is not None and not _FILTER_STRING.fullmatch(draft.filter_string):
        raise InvalidMetadata("A filter string has 1 to 4096 characters, visible ASCII and blanks; or leave it out.")
    if draft.content_type and not _CONTENT_TYPE.fullmatch(draft.content_type):
        raise InvalidMetadata("A content type has 1 to 255 visible ASCII characters, such as application/json.")
    if draft.destination is not None and not is_name(draft.destination):
        raise InvalidMetadata("A destination is the name of a subscriber, or 'default' for each of them once.")
    if draft.callback_url is not None:
        _check_callback_url(draft.callback_url)
    _check_headers(draft.headers)


def _check_callback_url(url: str) -> None:
    if not _ABSOLUTE.match(url):
        raise UnsuitableCallback("Give an absolute http:// or https:// URL as CallbackURL; replies are sent with POST.")
    if _WITH_LOGIN.match(url):
        raise UnsuitableCallback("The CallbackURL has a login; put what it needs into its path or query.")
    try:
        parse_endpoint(url)
    except ValidationError as refused:
        raise UnsuitableCallback(f"The CallbackURL cannot be used. {refused.message}") from None


def _check_headers(headers: Sequence[tuple[str, str]]) -> None:
    if len(headers) > MOST_HEADERS or sum(len(name) + len(value) for name, value in headers) > MOST_HEADER_CHARACTERS:
        raise InvalidMetadata(
            f"A message has at most {MOST_HEADERS} headers of {MOST_HEADER_CHARACTERS} characters in all."
        )
    for name, value in headers:
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InvalidMetadata(f"{name[:100]!r} is not a usable header: its name or its value is malformed.")
