"""Log events as JSON or text, without tokens, signing secrets, and values that PostgreSQL quotes."""

import re
import traceback
from collections.abc import Iterator, Mapping, MutableMapping
from types import TracebackType
from typing import Any, Final

import psycopg
import structlog
from django.db.utils import Error
from structlog.processors import ExceptionRenderer

STEPS: Final[list[Any]] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
EVERY_TURN: Final = ("celery.worker.strategy", "celery.app.trace")
"""Loggers that report every turn, many times a second. Flower shows turns."""

_ADDED: Final = re.compile(
    r"(^|\\n)[ |]*(DETAIL|HINT|CONTEXT|QUERY|STATEMENT|WHERE|LINE \d+):.*", re.MULTILINE | re.DOTALL
)
"""What PostgreSQL adds to an error: the refused row, a parameter, part of the statement.

Everything to the end of the text is removed, because quoted values can contain line breaks.
"""
_QUOTED: Final = re.compile(r'(invalid input (?:syntax|value) for [^:\n]+: )".*', re.DOTALL)
_TOKEN: Final = re.compile(r"(/callbacks/|/portal/open/)[^\s?#\"']+", re.IGNORECASE)
"""In the URL of a callback or of a link to the portal, where it is the credential."""
_SECRET: Final = re.compile(r"(brk_|whsec_)[A-Za-z0-9+/=_-]{16,}")
"""The token of an API key, or a signing secret. The prefix of a key, which may be shown, is shorter."""

_FAILED: Final = 500
"""Statuses from here on are failures of the broker, not of the request."""

_NAMES_ONLY: Final = ("08", "23", "25", "40", "53", "55", "57", "58")
"""Classes of SQLSTATE whose messages contain only names. Messages of other classes may quote values."""


def without_tokens(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove tokens and secrets from the texts of a log event, such as the path of a refused request."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _SECRET.sub(r"\1…", _TOKEN.sub(r"\1…", value))
    return event


def without_details(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove values that PostgreSQL quoted from the texts and exceptions of a log event."""
    return {name: _redact(value) for name, value in event.items()}


def without_traces_of_refusals(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Remove the exception with which Django refused a request. The event itself says what was refused."""
    if getattr(event["_record"], "status_code", _FAILED) < _FAILED:
        event.pop("exc_info", None)
    return event


def redacted_failure(failure: BaseException) -> str:
    """Return the text of an exception; for PostgreSQL errors only the parts that quote no values, in any language."""
    error = failure.__cause__ if isinstance(failure, Error) else failure
    if not isinstance(error, psycopg.Error) or not error.sqlstate:
        return _without_quotes(str(failure))
    names = (error.diag.table_name, error.diag.column_name, error.diag.constraint_name)
    reason = (
        str(error.diag.message_primary) if error.sqlstate.startswith(_NAMES_ONLY) else " ".join(filter(None, names))
    )
    return f"{type(error).__name__} ({error.sqlstate}) {reason}".rstrip()


def _trace_of(exc_info: tuple[type[BaseException], BaseException, TracebackType | None]) -> str:
    """Return a traceback with the texts of PostgreSQL errors redacted."""
    trace = "".join(traceback.format_exception(*exc_info)).rstrip("\n")
    chain = _chain(exc_info[1])
    failures = {str(error): error for error in chain if isinstance(error, Error | psycopg.Error) and str(error)}
    for text in sorted(failures, key=len, reverse=True):
        trace = trace.replace(f": {text}", f": {redacted_failure(failures[text])}")
    return trace


with_traces: Final = ExceptionRenderer(_trace_of)
"""Renders the exception of a log event as a redacted traceback."""


def _chain(raised: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and its contexts."""
    waiting, seen = [raised], set[int]()
    while waiting:
        error = waiting.pop()
        if id(error) not in seen:
            seen.add(id(error))
            yield error
            waiting += [earlier for earlier in (error.__cause__, error.__context__) if earlier]


def _redact(value: Any) -> Any:
    match value:
        case str():
            return _without_quotes(value)
        case BaseException():
            return redacted_failure(value)
        case Mapping():
            return {name: _redact(item) for name, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_redact(item) for item in value]
    return value


def _without_quotes(text: str) -> str:
    return _QUOTED.sub(r"\1…", _ADDED.sub(r"\1\2: …", text))


def logging_settings(*, log_format: str, level: str, logs_messages: bool) -> dict[str, Any]:
    """Configure structlog, and return Django's `LOGGING`, so that both log alike to standard error."""
    is_json = log_format == "json"
    renderer: Any = structlog.processors.JSONRenderer() if is_json else structlog.dev.ConsoleRenderer(colors=False)
    without_meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    processors = [without_traces_of_refusals, without_meta, with_traces, without_details, without_tokens, renderer]
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *STEPS, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    event = {"()": structlog.stdlib.ProcessorFormatter, "foreign_pre_chain": STEPS, "processors": processors}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"event": event},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "event"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {name: {"level": "WARNING"} for name in EVERY_TURN}
        | {"messages": {"level": "INFO" if logs_messages else "WARNING"}},
    }
