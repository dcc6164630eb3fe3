"""The keyword `uniqueItems`, in linear time.

That of `jsonschema_rs` compares all numbers with each other that one double stands for: some thousand long or very
small ones would take minutes.
"""

import json
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any, Final

from subscriptions.schemas.exact_json import MAX_DIGITS

FRACTION: Final = "\ud800"
"""A name that no member has, since `exact_json` refuses it."""

_EXACT: Final = Context(prec=MAX_DIGITS, Emax=MAX_EMAX, Emin=MIN_EMIN)


class UniqueItems:
    """Checks arrays that `exact_json` has read; `jsonschema_rs` calls it."""

    def __init__(self, _schema: dict[str, Any], is_wanted: Any, _path: list[str | int]) -> None:
        self._is_wanted = is_wanted is True

    def validate(self, value: Any) -> None:
        """Raise `ValueError` if two elements of an array are equal, or nested too deep to find out."""
        if not (self._is_wanted and isinstance(value, list) and len(value) > 1):
            return
        try:
            texts = {*map(_canonical, value)}
        except RecursionError:
            raise ValueError("the elements of this value are nested too deep to be compared") from None
        if len(texts) < len(value):
            raise ValueError("this value has non-unique elements")


def _plain(number: Decimal) -> int | dict[str, str]:
    """Return what equal numbers have in common, as JSON that nothing else has."""
    if number == number.to_integral_value():
        return int(number)
    return {FRACTION: str(number.normalize(_EXACT))}


_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain).encode
"""Returns the same text for equal values."""
