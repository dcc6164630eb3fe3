"""Why a message qualifies or does not: the header filter, and each term of the filter (contract 2.2, 3)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from subscriptions.filters.compile import Filter, compile_node, parse_filter
from subscriptions.filters.document import Document, reader, text_reader
from subscriptions.filters.json_values import MISSING, FilterFailed, json_text
from subscriptions.filters.parse import FilterSyntaxError
from subscriptions.filters.tree import Node, Path, paths_of, terms_of

SHOWN: Final = 200
"""Characters of a value that are shown."""


class Result(StrEnum):
    """The result of a filter, or of one of its terms, for a message."""

    TRUE = "true"
    FALSE = "false"
    NULL = "null"
    """Unknown: something it compares is missing."""

    FAILED = "failed"
    """It cannot be evaluated."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a term found at a path: text or JSON, shortened; None if nothing is there."""

    path: str
    value: str | None


@dataclass(frozen=True, slots=True)
class TermResult:
    """The result of a term and the values it looked at."""

    text: str
    result: Result
    values: tuple[Found, ...] = ()
    reason: str = ""
    """Why it failed, if it did."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of a filter, and of its terms in the order of its text."""

    result: Result
    terms: tuple[TermResult, ...]
    reason: str = ""
    """Why it failed, if it did."""


@dataclass(frozen=True, slots=True)
class FilterInput:
    """The parts of a message that subscriptions look at."""

    filter_string: str | None
    """The header `FILTER_STRING`; None if there is none."""
    document: Document


@dataclass(frozen=True, slots=True)
class HeaderFilterResult:
    """A header filter, and the header that it was compared with."""

    wanted: str
    given: str | None

    @property
    def holds(self) -> bool:
        """Whether they are exactly the same."""
        return self.wanted == self.given


@dataclass(frozen=True, slots=True)
class MatchExplanation:
    """Whether a message qualifies for a subscription, and why; a filter that is not set is None and holds."""

    header_filter: HeaderFilterResult | None
    filter: Explanation | None
    obstacle: str = ""
    """Why the message is not sent, independent of the filters, as a sentence."""

    @property
    def qualifies(self) -> bool:
        """Whether the subscription gets the message."""
        return self._may_qualify and (self.filter is None or self.filter.result is Result.TRUE)

    @property
    def is_unknown(self) -> bool:
        """Whether the filter fails: then the delivery is HELD (contract 3.6)."""
        return self._may_qualify and self.filter is not None and self.filter.result is Result.FAILED

    @property
    def why(self) -> str:
        """What decided, in a sentence."""
        if self.obstacle:
            return self.obstacle
        if self.header_filter and not self.header_filter.holds:
            given = self.header_filter.given
            return "The message has no FILTER_STRING." if given is None else "Its FILTER_STRING is another one."
        if self.filter is None:
            return "Its FILTER_STRING is the one." if self.header_filter else "There is no filter."
        return _SENTENCES[self.filter.result]

    @property
    def _may_qualify(self) -> bool:
        return not self.obstacle and (self.header_filter is None or self.header_filter.holds)


_SENTENCES = {
    Result.TRUE: "The filter is true.",
    Result.FALSE: "The filter is false.",
    Result.NULL: "The filter is null: something that it compares is missing.",
    Result.FAILED: "The filter fails: the delivery is HELD.",
}


def judge(shown: FilterInput, *, header_filter_string: str, filter_text: str, obstacle: str = "") -> MatchExplanation:
    """Return the verdict of these filters on a message; an empty one is not set."""
    header_filter = HeaderFilterResult(header_filter_string, shown.filter_string) if header_filter_string else None
    explanation = None
    if filter_text:
        try:
            explanation = explain(parse_filter(filter_text), shown.document)
        except FilterSyntaxError as wrong:  # not stored by this application
            explanation = Explanation(Result.FAILED, (), str(wrong))
    return MatchExplanation(header_filter, explanation, obstacle)


def explain(explained: Filter, document: Document) -> Explanation:
    """Return the result of a filter for a message, and of each of its terms by itself."""
    document.begin()
    result, reason = _result(explained.tree, document)
    document.begin()
    terms = []
    for term in terms_of(explained.tree):
        term_result, term_reason = _result(term, document)
        values = tuple(Found(str(path), _shown(path, document)) for path in paths_of(term))
        terms.append(TermResult(str(term), term_result, values, term_reason))
    return Explanation(result, tuple(terms), reason)


def _result(node: Node, document: Document) -> tuple[Result, str]:
    try:
        found = compile_node(node)(document)
    except FilterFailed as failed:
        return Result.FAILED, str(failed)
    return {True: Result.TRUE, False: Result.FALSE, None: Result.NULL}[found], ""


def _shown(path: Path, document: Document) -> str | None:
    """Return the value at a path, shortened, as text that can be stored and shown."""
    try:
        if path.as_text:
            text = text_reader(path)(document)
        else:
            value = reader(path)(document)
            if value is MISSING:
                return None
            document.count(value)
            text = json_text(value)
    except FilterFailed as failed:
        text = f"({failed})"
    if text is None:
        return None
    short = text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
    return short.encode(errors="backslashreplace").decode()
