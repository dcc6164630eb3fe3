"""Statements with optional blocks, of which a round trip takes those that it needs."""

from functools import cache
from typing import LiteralString


@cache
def with_blocks(statement: LiteralString, wanted: frozenset[str]) -> LiteralString:
    """Return a statement with its optional blocks that are `wanted`, without the others and without comment lines.

    A block stands between the lines `-- if name` and `-- end`; blocks may be nested. With all of them a statement is
    whole: they only add to it.
    """
    kept: list[LiteralString] = []
    is_open = [True]
    for line in statement.splitlines():
        match line.split():
            case ["--", "if", name]:
                is_open.append(name in wanted)
            case ["--", "end"]:
                is_open.pop()
            case [first, *_] if first != "--" and all(is_open):
                kept.append(line)
    return "\n".join(kept)
