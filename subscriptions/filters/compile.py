"""Compile filters to functions that return true, false, or None for unknown, as in SQL (contract 3.3); keep them."""

import operator
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final, TypeAlias

from django.core.exceptions import ValidationError

from subscriptions.filters.document import A_NODE, SEARCHED, Document, key_reader, reader, text_reader
from subscriptions.filters.json_values import MISSING, FilterFailed, SortKey, parse_json, sort_key
from subscriptions.filters.like import compile_like
from subscriptions.filters.parse import FilterSyntaxError, parse, parse_path
from subscriptions.filters.tree import (
    And,
    Comparison,
    Constant,
    HasKey,
    IsNull,
    Like,
    Node,
    Not,
    OneOf,
    Or,
    Path,
    equality_of,
)

MAX_KEPT: Final = 2 * 2**20
"""Characters of all kept filters together; compiled they take up to forty times that."""
OVERHEAD: Final = 64
"""What a filter takes in addition to its text, in characters."""

Test: TypeAlias = Callable[[Document], bool | None]
"""Raises `FilterFailed` if it cannot be evaluated."""
Comparable: TypeAlias = str | SortKey
Side: TypeAlias = Callable[[Document], Comparable | None]

MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
"""The operator after its sides have changed places."""
OPERATORS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Filter:
    """A filter, parsed and compiled."""

    __slots__ = ("_test", "canonical", "equality", "text", "tree")

    def __init__(self, text: str, tree: Node) -> None:
        self.text = text
        self.tree = tree
        self.canonical = str(tree)
        """The same for all filters that differ only in white space or the case of keywords (contract 6.3)."""
        self.equality = equality_of(tree)
        """A path with `->>` and the text without which the filter cannot be true, or None."""
        self._test = compile_node(tree)

    def matches(self, document: Document) -> bool:
        """Return whether a message qualifies, unknown does not; raise `FilterFailed` if it cannot be evaluated."""
        document.begin()
        return self._test(document) is True


class FilterCache:
    """Filters by text, the oldest removed first."""

    def __init__(self) -> None:
        self._filters: dict[str, Filter] = {}
        self._size = 0
        self._lock = Lock()
        self.get = self._filters.get

    def add(self, added: Filter) -> None:
        """Keep a filter."""
        with self._lock:
            if added.text not in self._filters:
                self._filters[added.text] = added
                self._size += len(added.text) + OVERHEAD
            while self._size > MAX_KEPT:
                oldest = next(iter(self._filters))
                del self._filters[oldest]
                self._size -= len(oldest) + OVERHEAD


_kept: Final = FilterCache()


def parse_filter(text: str) -> Filter:
    """Return the filter with this text; raise `FilterSyntaxError` if it is invalid or too large."""
    return _kept.get(text) or Filter(text, parse(text))


def cached_filter(text: str) -> Filter:
    """Return the filter with this text and keep it for the next call; raises as `parse_filter`."""
    found = _kept.get(text)
    if found is None:
        found = Filter(text, parse(text))
        _kept.add(found)
    return found


def validate_text_path(text: str) -> None:
    """Raise `ValidationError` unless `text` is a path to a text: its last step is `->>`."""
    try:
        is_text = parse_path(text).as_text
    except FilterSyntaxError as wrong:
        raise ValidationError(f"{wrong}.", code="path") from None
    if not is_text:
        raise ValidationError("Its last step must be ->>, which gives a text.", code="path")


def validate_filter(text: str) -> None:
    """Raise `ValidationError` unless `text` is a filter, with the place of the error."""
    try:
        parse_filter(text)
    except FilterSyntaxError as wrong:
        raise ValidationError(f"{wrong}.", code="filter") from None


def compile_node(node: Node, *, negated: bool = False) -> Test:
    """Return the function that evaluates `node`.

    Unless it is `negated`, an AND with an unknown part does not fail, since it could not be true. The term that filters
    are looked up by comes first, so that no other term decides whether the filter fails.
    """
    match node:
        case And(parts):
            looked_up_first = sorted(parts, key=lambda part: equality_of(part) is None)
            tests = [compile_node(part, negated=negated) for part in looked_up_first]
            return _connected(tests, deciding=False, passing_over=not negated)
        case Or(parts):
            return _connected([compile_node(part, negated=negated) for part in parts], deciding=True)
        case Not(part):
            return _negation(compile_node(part, negated=True))
    test = _comparison(node) if isinstance(node, Comparison) else _term(node)

    def holds(document: Document) -> bool | None:
        document.work.add(A_NODE)
        return test(document)

    return holds


def _connected(tests: Sequence[Test], *, deciding: bool, passing_over: bool = False) -> Test:
    """Return AND (false decides) or OR (true decides); failed and unknown parts matter only if no part decides.

    With `passing_over`, it is unknown instead of failed if a part is unknown.
    """

    def holds(document: Document) -> bool | None:
        failures: list[FilterFailed] = []
        is_unknown = False
        for test in tests:
            try:
                found = test(document)
            except FilterFailed as failed:
                failures.append(failed)
                continue
            if found is deciding:
                return deciding
            is_unknown |= found is None
        if failures and not (passing_over and is_unknown):
            raise failures[0]
        return None if failures or is_unknown else not deciding

    return holds


def _negation(test: Test) -> Test:
    def holds(document: Document) -> bool | None:
        found = test(document)
        return None if found is None else not found

    return holds


def _comparison(node: Comparison) -> Test:
    left, right, sign = node.left, node.right, node.operator
    if isinstance(left, Constant):
        left, right, sign = right, left, MIRRORED.get(sign, sign)
    assert isinstance(left, Path)  # noqa: S101 - the grammar requires one
    read, compare = _side(left), OPERATORS[sign]
    if isinstance(right, Constant):
        return _with_constant(read, compare, _constant(right, left))
    read_other = _side(right)

    def holds(document: Document) -> bool | None:
        value, other = read(document), read_other(document)
        return None if value is None or other is None else compare(value, other)

    return holds


def _with_constant(read: Side, compare: Callable[[Any, Any], bool], constant: object) -> Test:
    def holds(document: Document) -> bool | None:
        value = read(document)
        return None if value is None else compare(value, constant)

    return holds


def _term(node: OneOf | Like | IsNull | HasKey) -> Test:
    match node:
        case OneOf(path, options):
            chosen = frozenset(_constant(option, path) for option in options)
            longest = max(map(len, chosen))  # a longer value is none of them: hashing it would only cost time
            test = _with_constant(_side(path), lambda value, among: len(value) <= longest and value in among, chosen)
        case Like(path, pattern):
            test = _like(path, pattern.text)
        case HasKey(path, key):
            return _has_key(path, key.text)
        case IsNull(path):
            test = _is_null(path)
    return _negation(test) if node.negated else test


def _is_null(path: Path) -> Test:
    read: Callable[[Document], object] = text_reader(path) if path.as_text else reader(path)
    null = None if path.as_text else MISSING
    return lambda document: read(document) is null


def _like(path: Path, pattern: str) -> Test:
    read, matches, goes_by_character = text_reader(path), compile_like(pattern), "_" in pattern

    def holds(document: Document) -> bool | None:
        text = read(document)
        if text is None:
            return None
        if goes_by_character:
            document.work.add(len(text))
        return matches(text)

    return holds


def _has_key(path: Path, key: str) -> Test:
    read = reader(path)

    def holds(document: Document) -> bool | None:
        value = read(document)
        if value is MISSING:
            return None
        if isinstance(value, list):
            document.work.add(len(value) // SEARCHED)
        return key in value if isinstance(value, dict | list) else value == key

    return holds


def _side(path: Path) -> Side:
    """Return the function that reads a value for comparisons; None is null."""
    return text_reader(path) if path.as_text else key_reader(path)


def _constant(constant: Constant, beside: Path) -> Comparable:
    return constant.text if beside.as_text else sort_key(parse_json(constant.text))
