"""One request that is refused, and how."""

from dataclasses import dataclass, field
from typing import Final

import orjson

from tests.bad_input.wire import Headers

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Row:
    """A request and what it is answered; `<names>` in it stand for what the shop has, see `shops.Shop.names`."""

    what: str
    """In words, for whoever reads the report."""
    method: str
    path: str
    status: int
    code: str
    body: bytes = b""
    headers: dict[str, str | bytes] = field(default_factory=dict)
    key: str = "management"
    """Whose key goes with it; empty: nobody's."""

    def __str__(self) -> str:
        return f"{self.method} {self.path[:60]}: {self.what}"

    @property
    def sent_headers(self) -> Headers:
        """Return the headers as bytes; JSON is what a body is unless they say otherwise."""
        given = {"Content-Type": JSON, **self.headers} if self.body else self.headers
        return [(name, value if isinstance(value, bytes) else value.encode()) for name, value in given.items() if value]


def text(value: object) -> bytes:
    """Return a value as JSON."""
    return orjson.dumps(value)


def nested(levels: int) -> bytes:
    """Return an array in an array in an array."""
    return b"[" * levels + b"]" * levels
