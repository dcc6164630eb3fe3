"""YAML that means what JSON would: no aliases, no types of its own, `yes` and `2026-11-21` are texts."""

import re
from collections.abc import Hashable
from typing import Any, Final

import yaml

MOST_LEVELS: Final = 100
MOST_EVENTS: Final = 300_000
"""Keys, values, and ends of lists and mappings; reading so many takes seconds, and they are three hundred for each of a
thousand event types."""

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

_UNPRINTED: Final = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\uffef\U00010000-\U0010ffff]"
)
"""Escaped wherever it stands: YAML takes some of it for line ends."""


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
        if count > MOST_EVENTS:
            raise UnreadableYaml("it has too many keys and values; write so many as JSON, or in several files")
        level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if level > MOST_LEVELS:
            raise UnreadableYaml(f"it has more than {MOST_LEVELS} levels{_place(event.start_mark)}")
        if isinstance(event, yaml.AliasEvent):
            raise UnreadableYaml(f"aliases such as *{event.anchor} are not read{_place(event.start_mark)}")
        if tag := getattr(event, "tag", None):
            raise UnreadableYaml(f"tags such as {tag} are not read{_place(event.start_mark)}")


def _place(mark: Any) -> str:
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
