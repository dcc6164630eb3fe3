"""What never gets into a log: the tokens of callback addresses, each of which is a key."""

import re
from collections.abc import MutableMapping
from typing import Any, Final

_TOKEN: Final = re.compile(r"(/callbacks/)[^\s?#\"']+", re.IGNORECASE)


def without_tokens(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a log event without the tokens that stand in its texts, such as the path of a refused request."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _TOKEN.sub(r"\1…", value)
    return event
