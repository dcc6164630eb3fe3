"""What is wrong with which part of a request: DRF's and Django's nested errors as one flat list."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.core.exceptions import ValidationError
from rest_framework import exceptions
from rest_framework.settings import api_settings

Path = tuple[str, ...]


class InvalidQuery(exceptions.ValidationError):
    """Query parameters that are unknown, malformed or out of range."""


def body_errors(detail: Any) -> list[dict[str, str]]:
    """Return `{pointer, code, detail}` for each error; the pointer is a JSON pointer into the body, as a fragment."""
    return [{"pointer": "#" + "".join(f"/{_escaped(step)}" for step in path), **rest} for path, rest in _flat(detail)]


def query_errors(detail: Any) -> list[dict[str, str]]:
    """Return `{parameter, code, detail}` for each error."""
    return [{"parameter": "".join(path[:1]), **rest} for path, rest in _flat(detail)]


def django_errors(error: ValidationError) -> list[dict[str, str]]:
    """Return `{pointer, code, detail}` for each of Django's errors, which rules and models raise."""
    return body_errors(exceptions.ValidationError(_by_field(error)).detail)


def _by_field(error: ValidationError) -> Any:
    if not hasattr(error, "error_dict"):
        return [exceptions.ErrorDetail(text, code=error.code or "invalid") for text in error.messages]
    return {name: list(texts) for name, texts in error.message_dict.items()}


def _flat(detail: Any, path: Path = ()) -> Iterator[tuple[Path, dict[str, str]]]:
    """Walk DRF's nested errors, leaf by leaf."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            own = (api_settings.NON_FIELD_ERRORS_KEY, "__all__")
            yield from _flat(inner, path if name in own else (*path, str(name)))
    elif isinstance(detail, Sequence) and not isinstance(detail, str):
        for index, inner in enumerate(detail):
            yield from _flat(inner, path if isinstance(inner, str) else (*path, str(index)))
    else:
        yield path, {"code": getattr(detail, "code", "invalid"), "detail": str(detail)}


def _escaped(step: str) -> str:
    """Return one step of a JSON pointer (RFC 6901)."""
    return step.replace("~", "~0").replace("/", "~1")
