"""What explanations look like in the admin: the word says it, its colour only underlines it."""

from collections.abc import Iterator
from typing import Final

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.theme import label, table
from subscriptions.filter_verdict import Verdict
from subscriptions.filters import Explanation, Result, TermResult

COLOURS: Final = {Result.TRUE: "success", Result.FALSE: "danger", Result.NULL: "warning", Result.FAILED: "danger"}
NOTHING: Final = "nothing"


def verdict_label(verdict: Verdict) -> SafeString:
    """Return whether a message qualifies."""
    if verdict.is_unknown:
        return label("held", "warning")
    return label("gets it", "success") if verdict.qualifies else label("does not", "danger")


def result_label(result: Result) -> SafeString:
    """Return what a filter or a term of it is."""
    return label(result.value, COLOURS[result])


def terms_table(explanation: Explanation) -> SafeString:
    """Return the terms of a filter, one a row."""
    rows = [[_code(term.text), result_label(term.result), _found(term)] for term in explanation.terms]
    return table(["term", "is", "found in the message"], rows)


def terms_list(explanation: Explanation | None) -> SafeString:
    """Return the terms of a filter within one cell."""
    terms = explanation.terms if explanation else ()
    rows = ((result_label(term.result), _code(term.text), _found(term)) for term in terms)
    return format_html_join("", '<div class="py-1">{} {} — {}</div>', rows)


def _found(term: TermResult) -> SafeString:
    """Return the values a term looked at, which path had which where there are two; or why it failed."""
    return format_html("{}", term.reason) if term.reason else format_html_join(" ", "{}", zip(_values(term)))


def _values(term: TermResult) -> Iterator[SafeString]:
    for found in term.values:
        value = format_html("<em>{}</em>", NOTHING) if found.value is None else _code(found.value)
        yield format_html("<div>{} is {}</div>", _code(found.path), value) if len(term.values) > 1 else value


def _code(text: str) -> SafeString:
    return format_html('<code class="font-mono text-xs" style="overflow-wrap: anywhere">{}</code>', text)
