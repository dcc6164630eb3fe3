"""From the tree of a filter to a function: true, false, or None for unknown, as in SQL (contract 3.3)."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from subscriptions.filters.document import A_NODE, COMPARED, Document, TextReader, key_reader, reader, text_reader
from subscriptions.filters.json_values import MISSING, FilterFailed, SortKey, parse_json, sort_key
from subscriptions.filters.like import compile_like
from subscriptions.filters.tree import (
    All,
    Comparison,
    Constant,
    HasKey,
    IsNull,
    Like,
    Node,
    Not,
    OneOf,
    Path,
    Some,
    equality_of,
)

Test: TypeAlias = Callable[[Document], bool | None]
"""Raises `FilterFailed` where it cannot tell."""

Comparable: TypeAlias = str | SortKey
Side: TypeAlias = Callable[[Document], Comparable | None]


MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""What an operator becomes when its sides change places."""


def joined(tests: Sequence[Test], *, deciding: bool, passing_over: bool = False) -> Test:
    """Return AND (false decides) or OR (true decides); what fails or is unknown matters only where nothing decides.

    `passing_over` failures, it is unknown where a part is.
    """

    def holds(document: Document) -> bool | None:
        unsure: list[FilterFailed | None] = []
        for test in tests:
            found = _tried(test, document)
            if found is deciding:
                return deciding
            if not isinstance(found, bool):
                unsure.append(found)
        if not (passing_over and None in unsure):
            _raise_first(unsure)
        return None if unsure else not deciding

    return holds


def _raise_first(unsure: Sequence[FilterFailed | None]) -> None:
    for failure in filter(None, unsure):
        raise failure


def _tried(test: Test, document: Document) -> bool | FilterFailed | None:
    try:
        return test(document)
    except FilterFailed as failed:
        return failed


def opposite(test: Test) -> Test:
    """Return NOT; the opposite of unknown is unknown."""

    def holds(document: Document) -> bool | None:
        found = test(document)
        return None if found is None else not found

    return holds


OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compile_node(node: Node, *, negated: bool = False) -> Test:
    """Return what tells whether a message is as `node` says; it raises `FilterFailed` where it cannot tell.

    Where it is not `negated`, an AND with an unknown part cannot be told from a false one: it does not fail. The term
    that filters are looked up by comes first, so that nothing else decides whether it can be read.
    """
    match node:
        case All(parts):
            tests = [compile_node(part, negated=negated) for part in sorted(parts, key=_is_not_looked_up)]
            return joined(tests, deciding=False, passing_over=not negated)
        case Some(parts):
            return joined([compile_node(part, negated=negated) for part in parts], deciding=True)
        case Not(part):
            return opposite(compile_node(part, negated=True))
        case Comparison():
            return _counted(_comparison(node))
        case _:
            return _counted(_term(node))


def _is_not_looked_up(node: Node) -> bool:
    return equality_of(node) is None


def _counted(test: Test) -> Test:
    def holds(document: Document) -> bool | None:
        document.work.add(A_NODE)
        return test(document)

    return holds


def _comparison(node: Comparison) -> Test:
    left, right, sign = node.left, node.right, node.operator
    if isinstance(left, Constant):
        left, right, sign = right, left, MIRRORED.get(sign, sign)
    assert isinstance(left, Path)  # noqa: S101 - the grammar's promise: one side is
    read, compare = _side(left), OPERATORS[sign]
    if isinstance(right, Path):
        return _with_path(read, compare, _side(right))
    return _with_constant(read, compare, _constant(right, left))


def _with_constant(read: Side, compare: Callable[[Any, Any], bool], constant: object) -> Test:
    def holds(document: Document) -> bool | None:
        value = read(document)
        return None if value is None else compare(value, constant)

    return holds


def _with_path(read: Side, compare: Callable[[Any, Any], bool], read_other: Side) -> Test:
    def holds(document: Document) -> bool | None:
        value, other = read(document), read_other(document)
        return None if value is None or other is None else compare(value, other)

    return holds


def _term(node: OneOf | Like | IsNull | HasKey) -> Test:
    match node:
        case OneOf(path, options):
            chosen = frozenset(_constant(option, path) for option in options)
            test = _with_constant(_side(path), lambda value, among: value in among, chosen)
        case Like(path, pattern):
            test = _like(text_reader(path), pattern.text)
        case HasKey(path, key):
            return _has_key(path, key.text)
        case IsNull(path):
            test = _is_null(path)
    return opposite(test) if node.negated else test


def _like(read: TextReader, pattern: str) -> Test:
    matches, goes_by_character = compile_like(pattern), "_" in pattern

    def holds(document: Document) -> bool | None:
        text = read(document)
        if text is None:
            return None
        if goes_by_character:
            document.work.add(len(text))
        return matches(text)

    return holds


def _is_null(path: Path) -> Test:
    if path.as_text:
        read_text = text_reader(path)
        return lambda document: read_text(document) is None
    read = reader(path)
    return lambda document: read(document) is MISSING


def _has_key(path: Path, key: str) -> Test:
    read = reader(path)

    def holds(document: Document) -> bool | None:
        value = read(document)
        if value is MISSING:
            return None
        if isinstance(value, list):
            document.work.add(len(value) // COMPARED)
        return key in value if isinstance(value, dict | list) else value == key

    return holds


def _side(path: Path) -> Side:
    """Return what reads a value so that it can be compared; None for null."""
    return text_reader(path) if path.as_text else key_reader(path)


def _constant(constant: Constant, beside: Path) -> Comparable:
    return constant.text if beside.as_text else sort_key(parse_json(constant.text))
