"""What never gets into a log: tokens and signing secrets, what PostgreSQL quotes, and how a refusal came about."""

import re
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final

import psycopg
from django.db.utils import Error
from structlog.processors import ExceptionRenderer

_ADDED: Final = re.compile(
    r"(^|\\n)[ |]*(DETAIL|HINT|CONTEXT|QUERY|STATEMENT|WHERE|LINE \d+):.*", re.MULTILINE | re.DOTALL
)
"""What PostgreSQL adds to an error: the row that it refused, a parameter, a part of the statement.

Up to the end of the text, since nothing tells for sure where it ends: what it quotes may have lines of its own.
"""
_QUOTED: Final = re.compile(r'(invalid input (?:syntax|value) for [^:\n]+: )".*', re.DOTALL)
_TOKEN: Final = re.compile(r"(/callbacks/)[^\s?#\"']+", re.IGNORECASE)
"""In the address of a callback, which is the key to it."""
_SECRET: Final = re.compile(r"(brk_|whsec_)[A-Za-z0-9+/=_-]{16,}")
"""An API key's token or a signing secret, wherever somebody has put it; the prefix of a key is shorter."""

_FAILED: Final = 500
"""The first status that says that the broker, not who asked it, did something wrong."""

_NAMES_ONLY: Final = ("08", "23", "25", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE whose messages name constraints, columns and time-outs; those of others may quote values."""


def without_tokens(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a log event without the tokens and secrets in its texts, such as the path of a refused request."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _SECRET.sub(r"\1…", _TOKEN.sub(r"\1…", value))
    return event


def without_details(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Return a log event whose texts and failures say what PostgreSQL refused to do, and not with which values."""
    for name, value in event.items():
        event[name] = _undetailed(value)
    return event


def without_ways_to_refusals(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Return a log event without the exception by which a request was refused, such as one to a host that is not ours.

    The event says what was refused; Django has put the status of the answer into its record.
    """
    if getattr(event["_record"], "status_code", _FAILED) < _FAILED:
        event.pop("exc_info", None)
    return event


def told(failure: BaseException) -> str:
    """Return what a failure says, of one of PostgreSQL only what quotes no values, whatever language it is in."""
    said = failure.__cause__ if isinstance(failure, Error) else failure
    if not isinstance(said, psycopg.Error) or not said.sqlstate:
        return _without_quotes(str(failure))
    names = (said.diag.table_name, said.diag.column_name, said.diag.constraint_name)
    why = str(said.diag.message_primary) if said.sqlstate.startswith(_NAMES_ONLY) else " ".join(filter(None, names))
    return f"{type(said).__name__} ({said.sqlstate}) {why}".rstrip()


def _trace_of(exc_info: tuple[type[BaseException], BaseException, TracebackType | None]) -> str:
    """Return a traceback in which failures of PostgreSQL are told; their texts are known, and need not be guessed."""
    trace = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    failures = {str(one): one for one in _chain(exc_info[1]) if isinstance(one, Error | psycopg.Error) and str(one)}
    for text in sorted(failures, key=len, reverse=True):
        trace = trace.replace(f": {text}", f": {told(failures[text])}")
    return trace


with_traces: Final = ExceptionRenderer(_trace_of)
"""Puts the traceback of what was raised into a log event."""


def _chain(raised: BaseException) -> Iterator[BaseException]:
    """Return an exception and those that it came of."""
    waiting, seen = [raised], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [other for other in (one.__cause__, one.__context__) if other]


def _undetailed(value: Any) -> Any:
    match value:
        case str():
            return _without_quotes(value)
        case BaseException():
            return told(value)
        case Mapping():
            return {name: _undetailed(one) for name, one in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_undetailed(one) for one in value]
    return value


def _without_quotes(text: str) -> str:
    return _QUOTED.sub(r"\1…", _ADDED.sub(r"\1\2: …", text))
