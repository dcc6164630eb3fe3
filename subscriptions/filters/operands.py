"""What the two sides of a term are: places in the message and constants."""

from dataclasses import dataclass
from json import JSONDecodeError
from typing import Final, Generic, TypeAlias, TypeVar

from lark import Token

from subscriptions.filters.json_values import FilterFailed, levels, parse_json, sort_key
from subscriptions.filters.positions import FilterSyntaxError, Position, place_of
from subscriptions.filters.tree import HEADER, PARTS, Constant, Path

MAX_DEPTH: Final = 20
"""Parentheses and negations inside each other; arrays and objects inside each other in a constant."""
LARGEST_INDEX: Final = 2**31 - 1

Value_co = TypeVar("Value_co", covariant=True)
Operand: TypeAlias = Path | Constant


@dataclass(frozen=True, slots=True)
class Placed(Generic[Value_co]):
    """An operand and where it stands."""

    value: Value_co
    at: Position


def step(name: Token) -> str | int:
    """Return a key or an index as it stands in the text."""
    if name.startswith("'"):
        return unquoted(name)
    if len(name) > len(str(-LARGEST_INDEX)) or abs(int(name)) > LARGEST_INDEX:
        raise FilterSyntaxError(f"An index is at most {LARGEST_INDEX}", place_of(name))
    return int(name)


def unquoted(quoted: Token) -> str:
    """Return what stands between quotes."""
    return quoted[1:-1].replace("''", "'")


def without_case(steps: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return the steps with the name of a header, if they lead to one, in lower case (behaviour 3.2)."""
    match steps:
        case (whole, str(name), *rest) if whole == HEADER:
            return (HEADER, name.lower(), *rest)
    return steps


def check_part(name: str | int, at: Position) -> None:
    """Refuse what no message has right behind `$$`: it would be null for every one."""
    if name not in PARTS:
        raise FilterSyntaxError(f"$$ has only {' and '.join(map(repr, PARTS))}", at)


def check_json(*sides: Placed[Operand] | Placed[Constant]) -> None:
    """Refuse constants that are not JSON: beside a JSON value they must be."""
    for side in sides:
        if isinstance(side.value, Constant):
            problem = _problem_of(side.value.text)
            if problem:
                raise FilterSyntaxError(
                    f"Beside -> a constant is JSON, as '5' or '\"open\"'; this is not: {problem}", side.at
                )


def _problem_of(text: str) -> str:
    try:
        value = parse_json(text)
        if levels(value) > MAX_DEPTH:
            return "nested too deep"
        sort_key(value)
    except JSONDecodeError as broken:
        return broken.msg
    except (ValueError, FilterFailed) as refused:
        return str(refused)
    except RecursionError:
        return "nested too deep"
    return ""
