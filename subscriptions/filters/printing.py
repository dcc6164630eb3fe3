"""JSON values as PostgreSQL's jsonb prints them."""

import json
from collections.abc import Iterator
from decimal import Decimal

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
        return "".join(_printed(value))
    except RecursionError:
        raise FilterFailed(TOO_DEEP) from None


def _printed(value: Json) -> Iterator[str]:
    match value:
        case Decimal():
            number = held(value)
            yield format(number if number else number.copy_abs(), "f")  # a zero has no sign
        case list():
            yield f"[{', '.join(''.join(_printed(one)) for one in value)}]"
        case dict():
            members = (f"{_quoted(name)}: {''.join(_printed(value[name]))}" for name in in_order(value))
            yield f"{{{', '.join(members)}}}"
        case _:
            yield _quoted(value)


def _quoted(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)
