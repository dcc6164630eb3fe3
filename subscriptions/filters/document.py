"""What a message looks like to filters: an object with `Header` and `Body` (behaviour 3.1, 3.2)."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, TypeVar, cast

from subscriptions.filters.bodies import Unreadable, parse_body
from subscriptions.filters.json_values import FilterFailed, Json, SortKey
from subscriptions.filters.tree import Path
from subscriptions.filters.work import COMPARED, Work

MOST_READ: Final = 4 * 2**20
"""A filter that reads more characters fails: many terms that each read a large body would take seconds."""

Made = TypeVar("Made", str | None, SortKey)


class Document:
    """A message, parsed when the first filter looks into it and then no more."""

    def __init__(self, headers: Sequence[tuple[str, str]], body: bytes, *, is_json: bool) -> None:
        self._headers = headers
        self._body = body
        self._is_json = is_json
        self._read = 0
        self._made: dict[object, object] = {}
        self.work = Work()
        """What all filters that look at it have done; those of a publish share one."""

    def begin(self) -> None:
        """Count what is read anew, for another filter."""
        self._read = 0

    def count(self, value: Json) -> None:
        """Count what is read: a text by its length; what has parts, all of which are walked through, as the body.

        Raises:
            FilterFailed: it is too much.

        """
        if isinstance(value, str):
            self._read += len(value)
        elif isinstance(value, dict | list):
            self._read += len(self._body)
        if self._read > MOST_READ:
            raise FilterFailed(f"the filter reads more than {MOST_READ} characters of the message")

    def made(self, make: Callable[[Json], Made], path: Path, value: Json) -> Made:
        """Return what `make` makes of the value at a path: what takes time is made once for all filters.

        Raises:
            FilterFailed: it cannot be made, or takes too long.

        """
        self.count(value)
        if not isinstance(value, dict | list):
            return make(value)
        if (make, path.steps) not in self._made:
            self.work.add(len(self._body))
            made = make(value)
            if not self.work.may_keep:
                return made
            self._made[make, path.steps] = made
        self.work.add(len(self._body) // COMPARED)
        return cast("Made", self._made[make, path.steps])

    @property
    def body(self) -> Json:
        """The body's value, or the body as a JSON string if it is not JSON; null if that cannot be decoded.

        Raises:
            FilterFailed: the body is not the JSON it should be, or nested too deep.

        """
        body = self._parsed_body
        if isinstance(body, Unreadable):
            raise FilterFailed(body.reason)
        return body

    @cached_property
    def headers(self) -> dict[str, list[str]]:
        """The values of each header, by its name in lower case."""
        values: dict[str, list[str]] = {}
        for name, value in self._headers:
            values.setdefault(name.lower(), []).append(value)
        return values

    @cached_property
    def _parsed_body(self) -> Json | Unreadable:
        return parse_body(self._body, is_json=self._is_json)
