"""Bodies in and out: bytes within a limit, and strict JSON."""

from collections.abc import Iterable, Mapping
from typing import IO, Any

import orjson
from django.conf import settings
from django.http import HttpRequest
from rest_framework.exceptions import ParseError
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import BaseParser
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request

from broker_project.core.api.problems import ProblemType, register
from broker_project.core.json import strict_json

Context = Mapping[str, Any] | None
"""What DRF passes to parsers and renderers."""


class BodyTooLarge(Exception):
    """The body has more bytes than the view accepts."""


class LengthRequired(Exception):
    """The body comes without `Content-Length`, so that WSGI would take it for empty."""


class EncodedBody(Exception):
    """The body has a `Content-Encoding`; the stored bytes must be those sent, so nothing is decoded."""


register(
    {
        BodyTooLarge: ProblemType(413, "body_too_large"),
        LengthRequired: ProblemType(411, "length_required"),
        EncodedBody: ProblemType(415, "encoded_body"),
    }
)


def body_of(request: Request | HttpRequest, *, max_bytes: int) -> bytes:
    """Return the body's bytes unchanged, b"" if there is none.

    Raises:
        BodyTooLarge: it has more than `max_bytes`; it is not read.
        LengthRequired: it has no `Content-Length`.
        EncodedBody: it is compressed.
    """
    variables = request.META
    if variables.get("HTTP_CONTENT_ENCODING", "identity").strip().lower() not in {"", "identity"}:
        raise EncodedBody("Send the body unencoded, without Content-Encoding.")
    check_length_given(variables)
    try:
        length = int(variables.get("CONTENT_LENGTH") or 0)
    except ValueError:  # as Django reads it
        length = 0
    if length > max_bytes:
        raise BodyTooLarge(f"A body here has at most {max_bytes} bytes.")
    return request.body


def check_length_given(variables: Mapping[str, Any]) -> None:
    """Raise `LengthRequired` for a chunked body: DRF, as WSGI, would take it for empty and not call any parser."""
    if "HTTP_TRANSFER_ENCODING" in variables and not variables.get("CONTENT_LENGTH"):
        raise LengthRequired("Send the body with a Content-Length, not in chunks.")


class RawParser(BaseParser):
    """Accepts any body of at most `MAX_BODY_BYTES`, as bytes."""

    media_type = "*/*"

    def parse(self, stream: IO[Any], media_type: str | None = None, parser_context: Context = None) -> Any:  # noqa: ARG002 - DRF's signature
        """Return the body's bytes. DRF does not call this for an empty body."""
        return body_of((parser_context or {})["request"], max_bytes=settings.MAX_BODY_BYTES)


class JsonParser(RawParser):
    """Reads strict JSON of at most `MAX_BODY_BYTES`."""

    media_type = "application/json"

    def parse(self, stream: IO[Any], media_type: str | None = None, parser_context: Context = None) -> Any:
        """Return the body's value; raise `ParseError` if it is not strict JSON."""
        try:
            return strict_json(super().parse(stream, media_type, parser_context))
        except ValueError as broken:
            raise ParseError(f"The body is not usable JSON: {broken}.") from None


class JsonRenderer(BaseRenderer):
    """Writes JSON with orjson."""

    media_type = "application/json"
    format = "json"
    charset = None
    render_style = "binary"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Context = None) -> bytes:  # noqa: ARG002 - DRF's signature
        """Return `data` as JSON, in which times in UTC end in Z; nothing for an answer without a body."""
        return b"" if data is None else orjson.dumps(data, default=str, option=orjson.OPT_UTC_Z)


class AlwaysJson(DefaultContentNegotiation):
    """Answers with the view's first renderer and ignores `Accept`: clients with odd defaults get JSON too."""

    def select_renderer(
        self,
        request: Request,  # noqa: ARG002 - DRF's signature
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,  # noqa: ARG002
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer and its media type."""
        first = next(iter(renderers))
        return first, first.media_type
