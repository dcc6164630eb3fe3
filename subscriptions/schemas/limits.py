"""What a schema may be by itself, before anything in it is looked at."""

import json
from typing import Final

from subscriptions.schemas.pointers import Path, pointer_of

MOST_BYTES: Final = 64 * 1024
MOST_LEVELS: Final = 64


class BrokenSchema(ValueError):
    """This is no schema that payloads can be held against; `pointer` says which part of it."""

    def __init__(self, text: str, path: Path = ()) -> None:
        super().__init__(text)
        self.pointer = pointer_of(path)

    def __str__(self) -> str:
        return f"At {self.pointer}: {self.args[0]}" if self.pointer else str(self.args[0])


def text_of(schema: object) -> str:
    """Return the canonical JSON text of `schema`: sorted, without blanks.

    Raises:
        BrokenSchema: it is no object, too long, too deep, or has what JSON or the database cannot keep.

    """
    if not isinstance(schema, dict):
        raise BrokenSchema('A schema is a JSON object, such as {"type": "object"}.')
    if not _is_shallow(schema):
        raise BrokenSchema(f"A schema has at most {MOST_LEVELS} levels.")
    try:
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (ValueError, TypeError):
        raise BrokenSchema("A schema has no lone surrogates, and no numbers that JSON does not have.") from None
    if size > MOST_BYTES:
        raise BrokenSchema(f"A schema has at most {MOST_BYTES} bytes; this one has {size}.")
    if "\\u0000" in text.replace("\\\\", ""):
        raise BrokenSchema("A schema has no NUL characters.")
    return text


def _is_shallow(value: object) -> bool:
    """Tell whether `value` has few levels, going down level by level, so that no depth can break it."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        if not level:
            return True
        members = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [member for some in members for member in some]
    return False
