"""Whether a subscription's filters let a message through, and why (contract 2.2)."""

from dataclasses import dataclass

from subscriptions.filters import Document, Explanation, FilterSyntaxError, Result, parse_filter


@dataclass(frozen=True, slots=True)
class Shown:
    """What a message shows to subscriptions."""

    filter_string: str | None
    """The header `FILTER_STRING`; None without one."""
    document: Document


@dataclass(frozen=True, slots=True)
class HeaderFilterResult:
    """A header filter and what it was compared with."""

    wanted: str
    given: str | None

    @property
    def holds(self) -> bool:
        """Whether they are exactly the same."""
        return self.wanted == self.given


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a message at one subscription; a filter that is not set is None and holds."""

    header_filter: HeaderFilterResult | None
    filter: Explanation | None
    obstacle: str = ""
    """What keeps the message away whatever the filters say, as a sentence."""

    @property
    def qualifies(self) -> bool:
        """Whether the subscription gets the message."""
        return not self.obstacle and self._header_holds and (self.filter is None or self.filter.qualifies)

    @property
    def is_unknown(self) -> bool:
        """Whether nobody can tell, since the filter fails: then the delivery is HELD (contract 3.6)."""
        failed = self.filter is not None and self.filter.result is Result.FAILED
        return failed and not self.obstacle and self._header_holds

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
    def _header_holds(self) -> bool:
        return self.header_filter is None or self.header_filter.holds


_SENTENCES = {
    Result.TRUE: "The filter is true.",
    Result.FALSE: "The filter is false.",
    Result.NULL: "The filter is null: something that it compares is not there.",
    Result.FAILED: "The filter fails: the delivery is HELD.",
}


def judge(shown: Shown, *, header_filter_string: str, filter_text: str, obstacle: str = "") -> Verdict:
    """Return what these filters make of a message; an empty one is not set."""
    header_filter = HeaderFilterResult(header_filter_string, shown.filter_string) if header_filter_string else None
    return Verdict(header_filter, _explanation(filter_text, shown.document) if filter_text else None, obstacle)


def _explanation(text: str, document: Document) -> Explanation:
    try:
        return parse_filter(text).explain(document)
    except FilterSyntaxError as wrong:  # stored by other hands
        return Explanation(Result.FAILED, (), str(wrong))
