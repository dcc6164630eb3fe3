"""Export event types to a JSON or YAML file, and import them: all of a file or nothing.

A file is `{"event_types": [{"name": …, "schema": …}, …]}`. YAML is read as if it were JSON (contract 1.1).
"""

import json
import re
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import yaml
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import QuerySet

from broker_project.core.json import refuse_constant, same_json
from subscriptions import edit
from subscriptions.models import EventType

MAX_LEVELS: Final = 100
MAX_EVENTS: Final = 300_000
"""Keys, values, and ends of lists and mappings of a YAML file, which take seconds to read: three hundred for each of a
thousand event types."""
MAX_ENTRIES: Final = 1000
MAX_BYTES: Final = 16 * 1024 * 1024
TEXTS: Final = ("name", "kind", "content_type", "description", "sample")
FIELDS: Final = (*TEXTS, "schema")
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


class UnreadableFile(ValueError):
    """The text is not a file of event types; says why."""


class RefusedEntries(Exception):
    """Some entries cannot be imported, so none is; `problems` says which and why."""

    def __init__(self, problems: Sequence["EntryProblem"]) -> None:
        super().__init__("Nothing was imported; see errors.")
        self.problems = problems


class FileFormat(StrEnum):
    """The format of a file."""

    JSON = "json"
    YAML = "yaml"


class ImportVerdict(StrEnum):
    """What an import does to an event type."""

    CREATED = "CREATED"
    CHANGED = "CHANGED"
    UNCHANGED = "UNCHANGED"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a file says about one event type."""

    position: int
    """From 0."""
    name: str
    fields: dict[str, Any]
    """Including the name; fields that the file leaves out stay as they are."""


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """Why an entry cannot be imported."""

    position: int
    """From 0."""
    message: str
    field: str = ""
    """"": the entry as a whole."""

    @property
    def pointer(self) -> str:
        """Its place in the file as a JSON pointer."""
        return f"/event_types/{self.position}" + (f"/{self.field}" if self.field else "")


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import does, or would do, to one event type."""

    event_type: EventType
    """As it is afterwards."""
    verdict: ImportVerdict
    changed: tuple[str, ...] = ()
    """The fields that change."""


def export_event_types(which: QuerySet[EventType], written_in: FileFormat) -> str:
    """Return the text of a file with these event types, by name."""
    return file_text(which.order_by("name").values(*FIELDS), written_in)


@transaction.atomic
def import_event_types(data: bytes, *, dry_run: bool) -> list[Imported]:
    """Create and change event types as the file says, in its order; with `dry_run` only return what would be done.

    Raises:
        UnreadableFile: it is not a file of event types.
        RefusedEntries: some cannot be imported; nothing is.
        NameTaken: another event type has just been created under one of the names.

    """
    entries, problems = entries_in(data)
    named = EventType.objects.filter(name__in=[entry.name for entry in entries])
    known = {one.name: one for one in named.select_for_update(no_key=True).order_by("id")}
    planned = []
    for entry in entries:
        planned.append(_planned(entry, known.get(entry.name)))
        problems += _problems_of_plan(entry.position, planned[-1])
    if problems:
        raise RefusedEntries(sorted(problems, key=lambda problem: problem.position))
    return planned if dry_run else [_carried_out(plan) for plan in planned]


def _planned(entry: Entry, known: EventType | None) -> Imported:
    """Return what the entry asks for; the event type is not saved, and may be invalid."""
    if known is None:
        return Imported(EventType(**entry.fields), ImportVerdict.CREATED)
    changed = tuple(field for field, value in entry.fields.items() if not same_json(getattr(known, field), value))
    for field in changed:
        setattr(known, field, entry.fields[field])
    return Imported(known, ImportVerdict.CHANGED if changed else ImportVerdict.UNCHANGED, changed)


def _problems_of_plan(position: int, plan: Imported) -> Iterator[EntryProblem]:
    if "kind" in plan.changed:
        yield EntryProblem(position, f"{plan.event_type} exists, and the kind of an event type is fixed.", "kind")
    for check in (plan.event_type.clean_fields, plan.event_type.clean):
        try:
            check()
        except ValidationError as broken:
            for field, messages in broken.message_dict.items():
                yield from (EntryProblem(position, message, field) for message in messages)


def _carried_out(plan: Imported) -> Imported:
    if plan.verdict is ImportVerdict.CREATED:
        return replace(plan, event_type=edit.create(plan.event_type))
    if plan.verdict is ImportVerdict.CHANGED:
        which = EventType.objects.filter(pk=plan.event_type.pk)
        changes = {field: getattr(plan.event_type, field) for field in plan.changed}
        return replace(plan, event_type=edit.change(which, changes=changes))
    return plan


def entries_in(data: bytes) -> tuple[list[Entry], list[EntryProblem]]:
    """Return the entries of a file, and what is wrong with them: JSON if it begins with a brace, YAML otherwise.

    Problems are entries without a name or with one that came before, and fields that are unknown or not texts. An entry
    whose texts are valid is returned even so, without its unknown fields, so that further problems can be found.

    Raises:
        UnreadableFile: it is neither, has more than 16 MiB, or is not an object with a list of at most 1,000
            `event_types`.

    """
    if len(data) > MAX_BYTES:
        raise UnreadableFile(f"A file has at most {MAX_BYTES} bytes; this one has {len(data)}.")
    value = _value(data)
    items = value.get("event_types") if isinstance(value, dict) and len(value) == 1 else None
    if not isinstance(items, list):
        raise UnreadableFile("The file is not an object with one member, the list 'event_types'.")
    if len(items) > MAX_ENTRIES:
        raise UnreadableFile(f"A file has at most {MAX_ENTRIES} event types; this one has {len(items)}.")
    entries, problems, names = list[Entry](), list[EntryProblem](), set[str]()
    for position, item in enumerate(items):
        problems += _problems_of_item(position, item, names)
        if isinstance(item, dict) and "name" in item and not _broken_texts(item):
            names.add(item["name"])
            known = {field: value for field, value in item.items() if field in FIELDS}
            entries.append(Entry(position, item["name"], known))
    return entries, problems


def _problems_of_item(position: int, item: Any, names: Container[str]) -> Iterator[EntryProblem]:
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
    """Return the fields that are not texts which the database can store."""
    return [
        name for name in TEXTS if name in item and (not isinstance(item[name], str) or _UNSTORABLE.search(item[name]))
    ]


def file_text(event_types: Iterable[Mapping[str, Any]], written_in: FileFormat) -> str:
    """Return the file of `event_types`, each with all the fields of an entry."""
    content = {"event_types": [{field: one[field] for field in FIELDS} for one in event_types]}
    if written_in is FileFormat.YAML:
        return yaml_of(content)
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _value(data: bytes) -> Any:
    try:
        text = data.decode("utf-8-sig")
        if text.lstrip().startswith("{"):
            return json.loads(text, object_pairs_hook=_object_of, parse_constant=refuse_constant)
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
        keys = ", ".join(repr(key[:100]) for key in [*members][:5])
        raise ValueError(f"a key stands twice in an object; its keys are {keys}")
    return members


_PLAIN: Final = {
    "tag:yaml.org,2002:null": (r"(?:~|null|)", ["~", "n", ""]),
    "tag:yaml.org,2002:bool": (r"(?:true|false)", list("tf")),
    "tag:yaml.org,2002:int": (r"-?(?:0|[1-9][0-9]*)", list("-0123456789")),
    "tag:yaml.org,2002:float": (
        r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)",
        list("-0123456789"),
    ),
}
"""Unquoted words that are not texts, as in YAML 1.2: pattern and possible first characters."""
_ESCAPED: Final = re.compile("[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\uffef\U00010000-\U0010ffff]")
"""Characters that need escapes: YAML takes some of them for line ends."""


class UnreadableYaml(ValueError):
    """The text is not YAML of this kind; says where and why."""


class _Loader(yaml.CSafeLoader):
    """Refuses keys that are not texts or stand twice."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - yaml's own way

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return the mapping."""
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
    """Writes equal values in full each time, without aliases."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - yaml's own way

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        """Return True."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _ESCAPED.search(text) else "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


for _kind in (_Loader, _Dumper):
    for _tag, (_pattern, _first) in _PLAIN.items():
        _kind.add_implicit_resolver(_tag, re.compile(rf"^{_pattern}$"), _first)
_Dumper.add_representer(str, _represent_text)


def value_of(text: str) -> Any:
    """Return the JSON value of a YAML text.

    Raises:
        UnreadableYaml: it is not YAML, or has aliases, tags, more than 100 levels, too many keys and values, or
            keys that are not texts or stand twice.

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
    """Refuse what would make a small file large in memory, before it is constructed."""
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
