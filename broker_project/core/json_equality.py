"""When two JSON values are the same, as the database keeps them."""

from typing import Any


def same_json(one: Any, other: Any) -> bool:
    """Tell whether both are the same JSON value: `true` is not 1, as it is in Python, while 1e23 is 10^23."""
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
