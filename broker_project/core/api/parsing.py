"""Bodies in: bytes within a limit, and strict JSON.

orjson refuses what is not JSON: NaN and Infinity, numbers beyond a double, invalid UTF-8, a byte order mark, lone
surrogates, more than 1,024 levels, anything after the end. The standard library's parser then finds duplicate keys,
which one reader takes one way and the next another.
"""

import json
from collections import Counter
from collections.abc import Mapping
from typing import IO, Any

import orjson
from django.conf import settings
from django.http import HttpRequest
from rest_framework.exceptions import ParseError
from rest_framework.parsers import BaseParser
from rest_framework.request import Request

from broker_project.core.api.problems import ProblemType, register


class BodyTooLarge(Exception):
    """The body has more bytes than the view takes."""


class LengthRequired(Exception):
    """The body comes without `Content-Length`, so that WSGI cannot see it and would take it for empty."""


class EncodedBody(Exception):
    """The body has a `Content-Encoding`; what is stored must be what was sent, so nothing is unpacked."""


register(
    {
        BodyTooLarge: ProblemType(413, "body_too_large", "Body too large"),
        LengthRequired: ProblemType(411, "length_required", "Length required"),
        EncodedBody: ProblemType(415, "encoded_body", "Encoded body"),
    }
)


def body_of(request: Request | HttpRequest, *, limit: int) -> bytes:
    """Return the body's bytes untouched, b"" if there is none.

    Raises:
        BodyTooLarge: it has more than `limit` bytes; it is not read.
        LengthRequired: it has no `Content-Length`.
        EncodedBody: it is compressed.

    """
    if request.META.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() not in {"", "identity"}:
        raise EncodedBody("Send the body as it is, without Content-Encoding.")
    refuse_unmeasured(request)
    if _declared_length(request) > limit:
        raise BodyTooLarge(f"A body here has at most {limit} bytes.")
    return request.body


def refuse_unmeasured(request: Request | HttpRequest) -> None:
    """Raise `LengthRequired` for a body in chunks: DRF, as WSGI, would take it for empty and not call any parser."""
    if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
        raise LengthRequired("Send the body with a Content-Length instead of in chunks.")


def strict_json(body: bytes) -> Any:
    """Return the value that `body` is as JSON.

    Raises:
        ParseError: it is not JSON, is nested too deep, or has an object with a key twice.

    """
    try:
        orjson.loads(body)
        return json.loads(body, object_pairs_hook=_object_of)
    except RecursionError:
        raise ParseError("The body is not usable JSON: nested too deep.") from None
    except ValueError as broken:
        raise ParseError(f"The body is not usable JSON: {broken}.") from None


class JsonParser(BaseParser):
    """Reads strict JSON of at most `MAX_BODY_BYTES`."""

    media_type = "application/json"

    def parse(
        self,
        stream: IO[Any],  # noqa: ARG002 - DRF's signature
        media_type: str | None = None,  # noqa: ARG002
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the body's value."""
        return strict_json(_body_in(parser_context))


class RawParser(BaseParser):
    """Takes any body of at most `MAX_BODY_BYTES` as the bytes it is."""

    media_type = "*/*"

    def parse(
        self,
        stream: IO[Any],  # noqa: ARG002 - DRF's signature
        media_type: str | None = None,  # noqa: ARG002
        parser_context: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the body's bytes; DRF does not call this for an empty body: `body_of` has no such exception."""
        return _body_in(parser_context)


def _body_in(parser_context: Mapping[str, Any] | None) -> bytes:
    return body_of((parser_context or {})["request"], limit=settings.MAX_BODY_BYTES)


def _declared_length(request: Request | HttpRequest) -> int:
    """Return `Content-Length`, 0 if it is missing or not a number, as Django reads it."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of `pairs`; raise `ValueError` if a key stands there twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        counted = Counter(key for key, _ in pairs)
        raise ValueError(
            f"the key {next(key for key, times in counted.items() if times > 1)!r} stands twice in an object"
        )
    return members
