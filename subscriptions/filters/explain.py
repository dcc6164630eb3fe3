"""Why a message qualifies or does not: what each term of a filter found."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from subscriptions.filters.compile import Test, compile_node
from subscriptions.filters.document import Document, reader, text_reader
from subscriptions.filters.json_values import MISSING, FilterFailed, json_text
from subscriptions.filters.tree import Node, Path, paths_of, terms_of

SHOWN: Final = 200
"""So many characters of a value are shown."""


class Result(StrEnum):
    """What a filter, or a term of it, can be for a message."""

    TRUE = "true"
    FALSE = "false"
    NULL = "null"
    """Unknown: something it compares is not there."""

    FAILED = "failed"
    """It cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a term found at a path: text or JSON, shortened; None where there is nothing."""

    path: str
    value: str | None


@dataclass(frozen=True, slots=True)
class TermResult:
    """What a term is for a message, and of which values."""

    text: str
    result: Result
    values: tuple[Found, ...] = ()
    reason: str = ""
    """Why it failed, if it did."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a filter is for a message, and its terms, in the order of its text."""

    result: Result
    terms: tuple[TermResult, ...]
    reason: str = ""
    """Why it failed, if it did."""

    @property
    def qualifies(self) -> bool:
        """Whether the message gets through."""
        return self.result is Result.TRUE


def explain(tree: Node, document: Document) -> Explanation:
    """Return what a filter makes of a message, and each of its terms by itself."""
    document.begin()
    result, reason = _result(compile_node(tree), document)
    document.begin()
    return Explanation(result, tuple(_explained(term, document) for term in terms_of(tree)), reason)


def _explained(term: Node, document: Document) -> TermResult:
    result, reason = _result(compile_node(term), document)
    values = tuple(Found(str(path), _shown(path, document)) for path in paths_of(term))
    return TermResult(str(term), result, values, reason)


def _result(test: Test, document: Document) -> tuple[Result, str]:
    try:
        found = test(document)
    except FilterFailed as failed:
        return Result.FAILED, str(failed)
    return {True: Result.TRUE, False: Result.FALSE, None: Result.NULL}[found], ""


def _shown(path: Path, document: Document) -> str | None:
    """Return what stands at a path, shortened; it can be stored and shown whatever it is."""
    try:
        text = _text_at(path, document)
    except FilterFailed as failed:
        text = f"({failed})"
    if text is None:
        return None
    short = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return short.encode(errors="backslashreplace").decode()


def _text_at(path: Path, document: Document) -> str | None:
    if path.as_text:
        return text_reader(path)(document)
    value = reader(path)(document)
    if value is MISSING:
        return None
    document.count(value)
    return json_text(value)
