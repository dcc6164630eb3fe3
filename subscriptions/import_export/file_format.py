"""Event types as a JSON or YAML file: from text to entries of the right shape, and back."""

import json
import re
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, Final

import yaml

MAX_LEVELS: Final = 100
MAX_EVENTS: Final = 300_000
"""Keys, values, and ends of lists and mappings; reading so many takes seconds, and they are three hundred for each of a
thousand event types."""


_UNPRINTED: Final = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\uffef\U00010000-\U0010ffff]"
)
"""Escaped wherever it stands: YAML takes some of it for line ends."""

MAX_ENTRIES: Final = 1000
MAX_BYTES: Final = 16 * 1024 * 1024
TEXTS: Final = ("name", "kind", "content_type", "description", "sample")
FIELDS: Final = (*TEXTS, "schema")

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")

_PLAIN: Final = {
    "tag:yaml.org,2002:null": (r"(?:~|null|)", ["~", "n", ""]),
    "tag:yaml.org,2002:bool": (r"(?:true|false)", list("tf")),
    "tag:yaml.org,2002:int": (r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    "tag:yaml.org,2002:float": (
        r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)",
        list("-0123456789"),
    ),
}
"""What a word without quotes is, as in YAML 1.2; it is a text otherwise."""


class UnreadableYaml(ValueError):
    """The text is no YAML of this kind; says where and why."""


class _Loader(yaml.CSafeLoader):
    """Reads; a key that stands twice is refused."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - yaml's own way

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping, whose keys must be texts."""
        known = set[str]()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise UnreadableYaml(f"a key is no text{_place(node.start_mark)}")
            if key in known:
                raise UnreadableYaml(f"the key {key[:100]!r} stands twice{_place(node.start_mark)}")
            known.add(key)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Writes; nothing is ever an alias."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - yaml's own way

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        """Return that equal things are written out again."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _UNPRINTED.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


for _kind in (_Loader, _Dumper):
    for _tag, (_pattern, _first) in _PLAIN.items():
        _kind.add_implicit_resolver(_tag, re.compile(rf"^{_pattern}$"), _first)
_Dumper.add_representer(str, _text)


def value_of(text: str) -> Any:
    """Return the JSON value that a YAML text is.

    Raises:
        UnreadableYaml: it is not YAML, or has aliases, tags, more than 100 levels, too many keys and values, or
            keys that are no texts or stand twice.

    """
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a safe one # nosec B506
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        raise UnreadableYaml(
            f"{getattr(broken, 'problem', None) or 'it has a forbidden character'}{_place(mark)}"
        ) from None


def yaml_of(value: Any) -> str:
    """Return `value` as YAML that `value_of` reads back."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def _check_events(text: str) -> None:
    """Refuse what makes a small file a big or a strange thing, before anything is made of it."""
    level = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        if count > MAX_EVENTS:
            raise UnreadableYaml("it has too many keys and values; write so many as JSON, or in several files")
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MAX_LEVELS:
            raise UnreadableYaml(f"it has more than {MAX_LEVELS} levels{_place(event.start_mark)}")
        if isinstance(event, yaml.AliasEvent):
            raise UnreadableYaml(f"aliases such as *{event.anchor} are not read{_place(event.start_mark)}")
        if tag := getattr(event, "tag", None):
            raise UnreadableYaml(f"tags such as {tag} are not read{_place(event.start_mark)}")


def _place(mark: Any) -> str:
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""


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
    if len(data) > MAX_BYTES:
        raise UnreadableFile(f"A file has at most {MAX_BYTES} bytes; this one has {len(data)}.")
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
    if len(items) > MAX_ENTRIES:
        raise UnreadableFile(f"A file has at most {MAX_ENTRIES} event types; this one has {len(items)}.")
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


class FileFormat(StrEnum):
    """What a file is written in."""

    JSON = "json"
    YAML = "yaml"


def file_text(event_types: Iterable[Mapping[str, Any]], written_in: FileFormat) -> str:
    """Return the file of `event_types`, each with all the fields of an entry."""
    content = {"event_types": [{field: one[field] for field in FIELDS} for one in event_types]}
    if written_in is FileFormat.YAML:
        return yaml_of(content)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
