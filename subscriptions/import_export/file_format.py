"""From a file's text to its entries, each of the right shape; whether they can be imported, others say."""

import json
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from subscriptions.import_export.yaml_text import UnreadableYaml, value_of

MOST_ENTRIES: Final = 1000
MOST_BYTES: Final = 16 * 1024 * 1024
TEXTS: Final = ("name", "kind", "content_type", "description", "sample")
FIELDS: Final = (*TEXTS, "schema")

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a file says of one event type."""

    position: int
    """The first is 0."""
    name: str
    fields: dict[str, Any]
    """All it says, the name too; what it leaves out stays as it is."""


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """Why an entry cannot be imported."""

    position: int
    """The first is 0."""
    message: str
    field: str = ""
    """"": the entry as a whole."""

    @property
    def pointer(self) -> str:
        """Return where in the file it is, as a JSON pointer."""
        return f"/event_types/{self.position}" + (f"/{self.field}" if self.field else "")


class UnreadableFile(ValueError):
    """The text is no file of event types; says why."""


class RefusedEntries(Exception):
    """Some entries cannot be imported, so none is; `problems` says which and why."""

    def __init__(self, problems: Sequence[EntryProblem]) -> None:
        super().__init__("Nothing was imported; see errors.")
        self.problems = problems


def entries_in(data: bytes) -> tuple[list[Entry], list[EntryProblem]]:
    """Return the entries of a file, and what is wrong with them: JSON if it begins with a brace, YAML otherwise.

    Problems are entries without a name or with one that came before, and fields that are unknown or no texts. What has
    all its texts is an entry nevertheless, without what is unknown, so that others can say what else is wrong with it.

    Raises:
        UnreadableFile: it is neither, has more than 16 MiB, or is not an object with a list of at most 1,000
            `event_types`.

    """
    if len(data) > MOST_BYTES:
        raise UnreadableFile(f"A file has at most {MOST_BYTES} bytes; this one has {len(data)}.")
    entries, problems, names = list[Entry](), list[EntryProblem](), set[str]()
    for position, item in enumerate(_items(_value(data))):
        problems += _problems(position, item, names)
        if isinstance(item, dict) and "name" in item and not _broken_texts(item):
            names.add(item["name"])
            known = {field: value for field, value in item.items() if field in FIELDS}
            entries.append(Entry(position, item["name"], known))
    return entries, problems


def _value(data: bytes) -> Any:
    try:
        text = data.decode("utf-8-sig")
        if text.lstrip().startswith("{"):
            return json.loads(text, object_pairs_hook=_object_of, parse_constant=_refuse_constant)
        return value_of(text)
    except UnicodeDecodeError as broken:
        raise UnreadableFile(f"The file is not UTF-8: byte {broken.start} cannot be read.") from None
    except UnreadableYaml as broken:
        raise UnreadableFile(f"The file cannot be read as YAML: {broken}.") from None
    except RecursionError:
        raise UnreadableFile("The file is nested too deep.") from None
    except ValueError as broken:
        raise UnreadableFile(f"The file cannot be read: {broken}.") from None


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError(f"a key stands twice in an object; its keys are {_some(members)}")
    return members


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _items(value: Any) -> list[Any]:
    items = value.get("event_types") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(items, list):
        raise UnreadableFile("The file is not an object with one member, the list 'event_types'.")
    if len(items) > MOST_ENTRIES:
        raise UnreadableFile(f"A file has at most {MOST_ENTRIES} event types; this one has {len(items)}.")
    return items


def _some(keys: Iterable[str]) -> str:
    return ", ".join(repr(key[:100]) for key in islice(keys, 5))


def _problems(position: int, item: Any, names: Container[str]) -> Iterator[EntryProblem]:
    """Yield what is wrong with an entry, after others with those `names`."""
    if not isinstance(item, dict) or "name" not in item:
        yield EntryProblem(position, "An entry is an object with a name.")
        return
    for name in item:
        if name not in FIELDS:
            yield EntryProblem(position, f"There is no field {name[:100]!r}; they are {', '.join(FIELDS)}.")
    for name in _broken_texts(item):
        yield EntryProblem(position, "Give a text, without NUL characters and lone surrogates.", name)
    if isinstance(item["name"], str) and item["name"] in names:
        yield EntryProblem(position, f"{item['name'][:100]} stands in this file before.", "name")


def _broken_texts(item: dict[str, Any]) -> list[str]:
    """Return the fields that are no texts which the database can store."""
    return [
        name for name in TEXTS if name in item and (not isinstance(item[name], str) or _UNSTORABLE.search(item[name]))
    ]
