"""What never gets into a log: tokens and signing secrets, and what PostgreSQL quotes."""

import re
from collections.abc import MutableMapping
from typing import Any, Final

_DETAIL: Final = re.compile(r"^(DETAIL|CONTEXT|LINE \d+):.*(\n *\^)?", re.MULTILINE)
"""What PostgreSQL adds to an error: the row that it refused, a parameter, a part of the statement."""
_VALUE: Final = re.compile(r'(invalid input (?:syntax|value) for [^:\n]+: )".*"', re.MULTILINE)
_TOKEN: Final = re.compile(r"(/callbacks/)[^\s?#\"']+", re.IGNORECASE)
"""In the address of a callback, which is the key to it."""
_SECRET: Final = re.compile(r"(brk_|whsec_)[A-Za-z0-9+/=_-]{16,}")
"""An API key's token or a signing secret, wherever somebody has put it; the prefix of a key is shorter."""


def without_tokens(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a log event without the tokens and secrets in its texts, such as the path of a refused request."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _SECRET.sub(r"\1…", _TOKEN.sub(r"\1…", value))
    return event


def without_details(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a log event whose exceptions say what PostgreSQL refused to do, and not with which values."""
    if isinstance(trace := event.get("exception"), str):
        event["exception"] = _VALUE.sub(r"\1…", _DETAIL.sub(r"\1: …", trace))
    return event
