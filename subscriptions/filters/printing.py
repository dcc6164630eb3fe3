"""JSON values as PostgreSQL's jsonb prints them."""

import json
from decimal import Decimal
from typing import Final

from subscriptions.filters.values import TOO_DEEP, FilterFailed, Json, held, in_order


def text_of(value: Json) -> str | None:
    """Return what `->>` gives for `value`: a string's text, else its JSON; None for null.

    Raises:
        FilterFailed: it is nested too deep, or has a number that no decimal can hold.

    """
    if isinstance(value, str):
        return value
    return None if value is None else json_text(value)


def json_text(value: Json) -> str:
    """Return `value` as JSON; raises as `text_of`."""
    try:
        return _printed(value)
    except RecursionError:
        raise FilterFailed(TOO_DEEP) from None


def _printed(value: Json) -> str:
    """Return `value` as JSON, with one frame a level: loops, since what is shorter takes two."""
    parts: list[str] = []
    match value:
        case list():
            for element in value:
                parts += (_printed(element),)
            return f"[{', '.join(parts)}]"
        case dict():
            for name in in_order(value):
                parts += (f"{_quoted(name)}: {_printed(value[name])}",)
            return f"{{{', '.join(parts)}}}"
    return _scalar(value)


def _scalar(value: Json) -> str:
    match value:
        case str():
            return _quoted(value)
        case Decimal():
            number = held(value)
            return format(number if number else number.copy_abs(), "f")  # a zero has no sign
        case bool():
            return "true" if value else "false"
    return "null"


_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
