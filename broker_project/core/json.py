"""JSON: read strictly, which content types have it, and when two values are equal."""

import json
from collections import Counter
from functools import lru_cache
from typing import Any, NoReturn

import orjson


@lru_cache(maxsize=256)
def media_type_of(content_type: str) -> str:
    """Return the media type without parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    """Tell whether a body of this content type must be JSON: `application/json` or any `+json`."""
    media_type = media_type_of(content_type)
    return media_type == "application/json" or media_type.endswith("+json")


def strict_json(text: bytes) -> Any:
    """Return the value of a JSON text; raise `ValueError` if it is not JSON or has an object with a duplicate key.

    orjson refuses what is not JSON: NaN and Infinity, numbers beyond a double, invalid UTF-8, a byte order mark, lone
    surrogates, more than 1,024 levels, anything after the end. The standard library's parser then finds duplicate keys,
    which different readers take differently.
    """
    orjson.loads(text)
    try:
        return json.loads(text, object_pairs_hook=_object_of)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counted = Counter(key for key, _ in pairs)
        duplicate = next(key for key, times in counted.items() if times > 1)
        raise ValueError(f"the key {duplicate[:100]!r} occurs twice in an object")
    return members


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
