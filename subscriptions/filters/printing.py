"""JSON values as PostgreSQL's jsonb prints them."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Final

from subscriptions.filters.json_values import TOO_DEEP, FilterFailed, Json, held, in_order

MOST_PRINTED: Final = 4 * 2**20
"""Four times what a body may have."""


def text_of(value: Json) -> str | None:
    """Return what `->>` gives for `value`: a string's text, else its JSON; None for null.

    Raises:
        FilterFailed: it is nested too deep, or has a number that no decimal can hold.

    """
    if isinstance(value, str):
        return value
    return None if value is None else json_text(value)


def json_text(value: Json) -> str:
    """Return `value` as JSON; raises as `text_of`, and if that is far longer than bodies are."""
    if not isinstance(value, list | dict):
        return _scalar(value)
    output = Output()
    try:
        _print(value, output.add)
    except RecursionError:
        raise FilterFailed(TOO_DEEP) from None
    return "".join(output.parts)


class Output:
    """A text that is being made; a few bytes, such as 1e131071, can become very many."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self._size = 0

    def add(self, part: str) -> None:
        """Add a part; raise `FilterFailed` if that is too much."""
        self._size += len(part)
        if self._size > MOST_PRINTED:
            raise FilterFailed(f"the value has more than {MOST_PRINTED} characters as text")
        self.parts.append(part)


def _print(value: Json, add: Callable[[str], None]) -> None:
    """Print `value`, with one frame a level."""
    separator = ""
    match value:
        case list():
            add("[")
            for element in value:
                add(separator)
                _print(element, add)
                separator = ", "
            add("]")
        case dict():
            add("{")
            for name in in_order(value):
                add(f"{separator}{_quoted(name)}: ")
                _print(value[name], add)
                separator = ", "
            add("}")
        case _:
            add(_scalar(value))


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
