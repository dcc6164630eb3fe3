"""JSON read without losing a digit: 0.1 is a tenth, and 2^53 + 1 is not 2^53."""

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

MOST_DIGITS: Final = 1000
"""Digits, signs and exponent of one number: beyond that nobody means a quantity, and reading takes long."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")


class UnreadableJson(ValueError):
    """The text is no JSON whose numbers can be compared; says why."""


def exact_json(text: str | bytes) -> Any:
    """Return the value that `text` is, fractions as `Decimal`; of a key that stands twice the last counts.

    Raises:
        UnreadableJson: it is not JSON, is nested too deep, or has a number of too many digits or a lone surrogate.

    """
    try:
        read = text if isinstance(text, str) else text.decode()
        value = _DECODER.decode(read)
    except RecursionError:
        raise UnreadableJson("nested too deep") from None
    except InvalidOperation:
        raise UnreadableJson("a number's exponent is out of range") from None
    except ValueError as broken:
        raise UnreadableJson(str(broken)) from None
    if _SURROGATE.search(read):
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise UnreadableJson("a text has a lone surrogate") from None
    except RecursionError:
        raise UnreadableJson("nested too deep") from None


def _whole(digits: str) -> int:
    return int(_limited(digits))


def _fraction(digits: str) -> Decimal:
    return Decimal(_limited(digits))


def _limited(digits: str) -> str:
    if len(digits) > MOST_DIGITS:
        raise UnreadableJson(f"a number has {len(digits)} digits; at most {MOST_DIGITS} can be compared")
    return digits


def _refuse_constant(name: str) -> Any:
    raise UnreadableJson(f"{name} is not a JSON value")


_DECODER: Final = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_refuse_constant)
