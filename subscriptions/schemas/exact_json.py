"""JSON read without losing a digit, and JSON pointers (RFC 6901)."""

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Final

from broker_project.core.json import refuse_constant

MAX_DIGITS: Final = 1000
"""Characters of one number, and digits before or after its point: beyond that it is no quantity, and takes long to read
and to compare."""

_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_INDEX: Final = re.compile("0|[1-9][0-9]*")

Path = tuple[str | int, ...]
"""The steps from the root of a document: names of members and positions of elements."""


class UnreadableJson(ValueError):
    """The text is not JSON whose numbers can be compared; says why."""


def exact_json(text: str | bytes) -> Any:
    """Return the value of `text`, fractions as `Decimal`, of duplicate keys the last.

    Raises `UnreadableJson` if it is no JSON, is nested too deep, has a lone surrogate, or a number that is too long.
    """
    try:
        read = text if isinstance(text, str) else text.decode()
        value = _DECODER.decode(read)
        if _SURROGATE.search(read):
            json.dumps(value, ensure_ascii=False, default=str).encode()
    except RecursionError:
        raise UnreadableJson("nested too deep") from None
    except InvalidOperation:
        raise UnreadableJson(_OUT_OF_RANGE) from None
    except UnicodeEncodeError:
        raise UnreadableJson("a text has a lone surrogate") from None
    except ValueError as broken:
        raise UnreadableJson(str(broken)) from None
    return value


def _number(number_type: Callable[[str], Any], digits: str) -> Any:
    if len(digits) > MAX_DIGITS:
        raise UnreadableJson(f"a number has {len(digits)} digits; at most {MAX_DIGITS} can be compared")
    return number_type(digits)


def _fraction(text: str) -> Decimal:
    number = Decimal(text)
    if abs(number.adjusted()) > MAX_DIGITS:
        raise UnreadableJson(_OUT_OF_RANGE)
    return number


_OUT_OF_RANGE: Final = (
    f"a number's exponent is out of range: at most {MAX_DIGITS} digits before or after the point can be compared"
)
_DECODER: Final = json.JSONDecoder(
    parse_int=partial(_number, int), parse_float=partial(_number, _fraction), parse_constant=refuse_constant
)


def pointer_of(path: Path) -> str:
    """Return the pointer of `path`; "" is the whole document."""
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def path_of(pointer: str) -> Path:
    """Return the steps of `pointer`, each as a text."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def found_at(document: Any, path: Path) -> Any:
    """Return the value at `path`; raise `LookupError` if there is none."""
    for step in path:
        if isinstance(document, dict):
            document = document[step]
        elif isinstance(document, list) and _INDEX.fullmatch(str(step)):
            document = document[int(step)]
        else:
            raise LookupError(step)
    return document
