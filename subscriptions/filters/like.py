"""LIKE, in time linear in the text: `%` stands for anything, `_` for one character, a backslash escapes."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeAlias

Matcher: TypeAlias = Callable[[str], bool]


class Wildcard(Enum):
    """Stands for other characters."""

    ONE = "_"
    ANY = "%"


ESCAPE: Final = "\\"


def compile_like(pattern: str) -> Matcher:
    """Return the function that matches a whole text; raise `ValueError` if the pattern ends within an escape."""
    signs: list[str | Wildcard] = []
    characters = iter(pattern)
    for character in characters:
        if character == ESCAPE:
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError("A pattern does not end with a lone backslash; write two")
            signs.append(escaped)
        else:
            signs.append({"_": Wildcard.ONE, "%": Wildcard.ANY}.get(character, character))
    return _by_states(signs) if Wildcard.ONE in signs else _by_pieces(signs)


def _by_pieces(signs: Sequence[str | Wildcard]) -> Matcher:
    """Return a matcher for the pieces between `%`: first and last are at the ends, the others follow each other."""
    pieces = [""]
    for sign in signs:
        if isinstance(sign, Wildcard):
            pieces.append("")
        else:
            pieces[-1] += sign
    first, *others = pieces
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


def _by_states(signs: Sequence[str | Wildcard]) -> Matcher:
    """Return a matcher that follows all ways through the pattern at once: bit n is set if n signs have matched."""
    bit = 1
    loops = passing = 0  # states that any character keeps, at a `%`, and that any character advances, at a `_`
    own: defaultdict[str, int] = defaultdict(int)
    for sign in signs:
        if sign is Wildcard.ANY:
            loops |= bit
            continue
        if isinstance(sign, str):
            own[sign] |= bit
        else:
            passing |= bit
        bit <<= 1
    end, takes = bit, {character: bits | passing for character, bits in own.items()}

    def matches(text: str) -> bool:
        state = 1
        for character in text:
            state = (state & takes.get(character, passing)) << 1 | state & loops
            if not state:
                return False
        return bool(state & end)

    return matches
