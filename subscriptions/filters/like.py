"""LIKE, in time linear in the text: `%` stands for anything, `_` for one character, a backslash escapes."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

Matcher: TypeAlias = Callable[[str], bool]


class Wildcard(Enum):
    """What stands for other characters."""

    ONE = "_"
    ANY = "%"


Sign: TypeAlias = str | Wildcard

ESCAPE: Final = "\\"


def compile_like(pattern: str) -> Matcher:
    """Return what tells whether a text looks like `pattern`.

    Raises:
        ValueError: the pattern ends in the middle of an escape.

    """
    signs = _signs(pattern)
    return _by_states(signs) if Wildcard.ONE in signs else _by_pieces(signs)


def _signs(pattern: str) -> list[Sign]:
    signs: list[Sign] = []
    characters = iter(pattern)
    for character in characters:
        if character == ESCAPE:
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError("A pattern does not end with a lone backslash; write two")
            signs.append(escaped)
        else:
            signs.append({"_": Wildcard.ONE, "%": Wildcard.ANY}.get(character, character))
    return signs


def _by_pieces(signs: Sequence[Sign]) -> Matcher:
    """Return a matcher for texts between `%`: the first begins it, the last ends it, the others follow each other."""
    first, *others = _pieces(signs)
    if not others:
        return first.__eq__
    *middle, last = others

    def matches(text: str) -> bool:
        at, end = len(first), len(text) - len(last)
        if at > end or not (text.startswith(first) and text.endswith(last)):
            return False
        for piece in middle:
            at = text.find(piece, at, end)
            if at < 0:
                return False
            at += len(piece)
        return True

    return matches


def _pieces(signs: Sequence[Sign]) -> list[str]:
    """Return what stands between `%`."""
    pieces = [""]
    for sign in signs:
        if isinstance(sign, Wildcard):
            pieces.append("")
        else:
            pieces[-1] += sign
    return pieces


def _by_states(signs: Sequence[Sign]) -> Matcher:
    """Return a matcher that follows every way through the pattern at once: bit n is set where n signs are used up."""
    single = [sign for sign in signs if sign is not Wildcard.ANY]
    passing = sum(1 << place for place, sign in enumerate(single) if sign is Wildcard.ONE)
    takes = {sign: passing for sign in single if isinstance(sign, str)}
    for place, sign in enumerate(single):
        if isinstance(sign, str):
            takes[sign] |= 1 << place
    return _machine(takes, passing, _loops(signs), end=1 << len(single))


def _loops(signs: Sequence[Sign]) -> int:
    """Return the states that take any number of characters: those where a `%` stands."""
    place = loops = 0
    for sign in signs:
        if sign is Wildcard.ANY:
            loops |= 1 << place
        else:
            place += 1
    return loops


def _machine(takes: Mapping[str, int], passing: int, loops: int, *, end: int) -> Matcher:
    def matches(text: str) -> bool:
        state = 1
        for character in text:
            state = (state & takes.get(character, passing)) << 1 | state & loops
            if not state:
                return False
        return bool(state & end)

    return matches
