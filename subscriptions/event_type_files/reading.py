"""From a file's text to its entries, each of the right shape; whether they can be imported, others say."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from subscriptions.event_type_files.yaml_text import UnreadableYaml, value_of

MOST_ENTRIES: Final = 1000
MOST_BYTES: Final = 16 * 1024 * 1024
TEXTS: Final = ("name", "kind", "content_type", "description", "sample")
FIELDS: Final = (*TEXTS, "schema")

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a file says of one event type."""

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


def entries_in(data: bytes) -> list[Entry]:
    """Return the entries of a file: JSON if it begins with a brace, YAML otherwise.

    Raises:
        UnreadableFile: it is neither, has more than 16 MiB, or is not an object with a list of at most 1,000
            `event_types`.
        RefusedEntries: an entry has no name or a name that came before, or fields that are unknown or no texts.

    """
    if len(data) > MOST_BYTES:
        raise UnreadableFile(f"A file has at most {MOST_BYTES} bytes; this one has {len(data)}.")
    items = _items(_value(data))
    problems = [problem for position, item in enumerate(items) for problem in _problems(position, item)]
    if problems:
        raise RefusedEntries(problems)
    entries = [Entry(item["name"], item) for item in items]
    _refuse_repeated([entry.name for entry in entries])
    return entries


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
        raise ValueError(f"a key stands twice in an object; its keys are {', '.join(list(members)[:5])}")
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


def _problems(position: int, item: Any) -> list[EntryProblem]:
    if not isinstance(item, dict) or "name" not in item:
        return [EntryProblem(position, "An entry is an object with a name.")]
    unknown = [name for name in item if name not in FIELDS]
    broken = [name for name in TEXTS if name in item and not _is_text(item[name])]
    return [
        *(
            EntryProblem(position, f"There is no field {name[:100]!r}; they are {', '.join(FIELDS)}.")
            for name in unknown
        ),
        *(EntryProblem(position, "Give a text, without NUL characters and lone surrogates.", name) for name in broken),
    ]


def _is_text(value: Any) -> bool:
    """Tell whether `value` is a text that the database can store."""
    return isinstance(value, str) and not _UNSTORABLE.search(value)


def _refuse_repeated(names: list[str]) -> None:
    problems = [
        EntryProblem(position, f"{name} stands in this file before.", "name")
        for position, name in enumerate(names)
        if name in names[:position]
    ]
    if problems:
        raise RefusedEntries(problems)
