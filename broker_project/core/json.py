"""JSON: which content types have it, which constants are not JSON, and when two values are equal."""

from functools import lru_cache
from typing import Any, NoReturn


@lru_cache(maxsize=256)
def media_type_of(content_type: str) -> str:
    """Return the media type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Tell whether a body of this content type must be JSON: `application/json` or any `+json`."""
    media_type = media_type_of(content_type)
    return media_type == "application/json" or media_type.endswith("+json")


def refuse_constant(name: str) -> NoReturn:
    """Raise `ValueError` for NaN and Infinity, which Python takes for numbers: the `parse_constant` of a decoder."""
    raise ValueError(f"{name} is not a JSON value")


def same_json(one: Any, other: Any) -> bool:
    """Tell whether two values are equal JSON: `true` is not 1, as in Python, and 1e23 is 10^23."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same_json(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, float) and isinstance(other, int):
        return one == float(other)
    if isinstance(one, int) and isinstance(other, float):
        return float(one) == other
    return bool(one == other)
