"""JSON values as PostgreSQL's jsonb compares and prints them (contract 3.2, 3.3)."""

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Context, Decimal
from enum import Enum
from typing import Any, Final, TypeAlias

from broker_project.core.json import refuse_constant

MAX_DIGITS: Final = 131_072
"""Of a `numeric`, before the decimal point."""
MAX_SCALE: Final = 16_383
"""Digits after the decimal point."""
SURELY_HELD: Final = 1_000
"""A number with fewer characters and no exponent is within both."""
MAX_PRINTED: Final = 4 * 2**20
"""Characters of a value as text: four times the size of a body."""

Json: TypeAlias = bool | Decimal | str | Sequence["Json"] | Mapping[str, "Json"] | None
"""A JSON value; of duplicate keys the last counts, numbers keep their scale."""

SortKey: TypeAlias = tuple[Any, ...]

TOO_DEEP: Final = "the value is nested too deep"
BELOW_ALL: Final = (-1,)
"""The key of an empty array at the top: for historical reasons jsonb sorts it below null."""
BEYOND: Final = Decimal("NaN")
"""Replaces a number that a `numeric` cannot hold: only a filter that looks at it fails."""

_LENIENT: Final = Context(traps=[])
_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode


class Missing(Enum):
    """SQL's null, which is not JSON's."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


class FilterFailed(Exception):
    """A filter cannot be evaluated for a message; the text says why (contract 3.6)."""


def parse_json(text: str) -> Json:
    """Return the JSON value; raise `ValueError` if it is not JSON, `RecursionError` if it is nested too deep."""
    value: Json = _DECODER.decode(text)
    return value


def sort_key(value: Json) -> SortKey:
    """Return a key that sorts like `value` in jsonb's order; raise `FilterFailed` if jsonb could not hold the value."""
    if value == []:
        return BELOW_ALL
    key: list[Any] = []
    try:
        _extend(key, value)
    except RecursionError:
        raise FilterFailed(TOO_DEEP) from None
    return tuple(key)


def levels(value: Json) -> int:
    """Return how deep arrays and objects are nested in `value`."""
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    return 1 + max(map(levels, value), default=0) if isinstance(value, list) else 0


def _extend(key: list[Any], value: Json) -> None:
    """Add `value` to a key: first its type, so that only values of one type are compared.

    The key is flat: to compare nested tuples takes quadratic time, since each level is compared twice.
    """
    match value:
        case list():
            key += (4, len(value))
            for element in value:
                _extend(key, element)
        case dict():
            key += (5, len(value))
            for name in keys_in_jsonb_order(value):
                key.append(name)
                _extend(key, value[name])
        case str():
            key += (1, value)
        case Decimal():
            key += (2, held(value))
        case bool():
            key += (3, value)
        case _:
            key.append(0)


def keys_in_jsonb_order(members: Mapping[str, Json]) -> list[str]:
    """Return the keys as jsonb keeps them: by length in bytes, then by bytes."""
    return sorted(members, key=lambda name: (len(encoded := name.encode(errors="surrogatepass")), encoded))


def held(number: Decimal) -> Decimal:
    """Return `number`; raise `FilterFailed` if it replaces one that a `numeric` cannot hold."""
    if number is BEYOND:
        raise FilterFailed(f"a number has more than {MAX_DIGITS} digits, or {MAX_SCALE} after the decimal point")
    return number


def _number(text: str) -> Decimal:
    """Return a JSON number with its scale."""
    if len(text) < SURELY_HELD and "e" not in text and "E" not in text:
        return Decimal(text)
    number = Decimal(text, _LENIENT)
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or -exponent > MAX_SCALE or (number and number.adjusted() >= MAX_DIGITS):
        return BEYOND
    return number


_DECODER: Final = json.JSONDecoder(parse_int=_number, parse_float=_number, parse_constant=refuse_constant)


def text_of(value: Json) -> str | None:
    """Return what `->>` gives for `value`: a string itself, None for null, else its JSON; raises as `json_text`."""
    if isinstance(value, str):
        return value
    return None if value is None else json_text(value)


def json_text(value: Json) -> str:
    """Return `value` as JSON; raise `FilterFailed` if it is too long or too deep, or a number is beyond `numeric`."""
    if not isinstance(value, list | dict):
        return _scalar(value)
    parts, size = list[str](), 0

    def add(part: str) -> None:
        nonlocal size
        size += len(part)
        if size > MAX_PRINTED:  # a few bytes, such as 1e131071, can become very many
            raise FilterFailed(f"the value has more than {MAX_PRINTED} characters as text")
        parts.append(part)

    try:
        _print(value, add)
    except RecursionError:
        raise FilterFailed(TOO_DEEP) from None
    return "".join(parts)


def _print(value: Json, add: Callable[[str], None]) -> None:
    """Print `value`, with one stack frame a level."""
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
            for name in keys_in_jsonb_order(value):
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
