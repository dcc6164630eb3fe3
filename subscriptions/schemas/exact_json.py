"""JSON read without losing a digit, and JSON pointers (RFC 6901)."""

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any, Final

MAX_DIGITS: Final = 1000
"""Digits, signs and exponent of one number: beyond that nobody means a quantity, and reading takes long."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")

Path = tuple[str | int, ...]
"""The steps from the root of a document: members' names and elements' positions."""


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
    if len(digits) > MAX_DIGITS:
        raise UnreadableJson(f"a number has {len(digits)} digits; at most {MAX_DIGITS} can be compared")
    return digits


def _refuse_constant(name: str) -> Any:
    raise UnreadableJson(f"{name} is not a JSON value")


_DECODER: Final = json.JSONDecoder(parse_int=_whole, parse_float=_fraction, parse_constant=_refuse_constant)


def pointer_of(path: Path) -> str:
    """Return the pointer of `path`; "" is the whole document."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def path_of(pointer: str) -> Path:
    """Return the steps of `pointer`, each as a text."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def found_at(document: Any, path: Path) -> Any:
    """Return what stands at `path`.

    Raises:
        LookupError: nothing does.

    """
    for step in path:
        document = _member(document, step)
    return document


def _member(document: Any, step: str | int) -> Any:
    match document:
        case dict():
            return document[step]
        case list():
            return document[_position(step)]
    raise LookupError(step)


def _position(step: str | int) -> int:
    if isinstance(step, int) or (step.isascii() and step.isdigit() and (step == "0" or step[0] != "0")):
        return int(step)
    raise LookupError(step)
