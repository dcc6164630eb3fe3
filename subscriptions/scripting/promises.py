"""Where a script may begin an async function: what such a one throws ends up in a promise, and nobody would see it."""

import re
from typing import Final

ASYNC: Final = re.compile(
    r"""
    (?<![\w$])                         # a word of its own,
    (?<! (?<!\.)\. )                   # not the name of a property after a point (but after the three of a spread),
    (?! (?<=(["'`]))async\1 )          # not all of a string;
    async (?![\w$])
    (?= [^\S\n\r\u2028\u2029]*         # and on its line there follows something
        [^\s:,;.=)}\]<>&|?+%^!~`-] )   # that can be a function's: a word, a bracket, an asterisk, a string, a comment
    """,
    re.VERBOSE,
)
"""Errs on one side only: it finds more than functions in comments and in strings of several words."""


def line_of_async(source: str) -> int | None:
    """Return the line, from 1, in which an async function may begin; None where there is none for certain."""
    found = ASYNC.search(source)
    return source.count("\n", 0, found.start()) + 1 if found else None
