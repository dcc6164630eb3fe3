"""JSON out: whatever a client accepts, it gets JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request


class JsonRenderer(BaseRenderer):
    """Writes JSON with orjson; times in UTC end in Z."""

    media_type = "application/json"
    format = "json"
    charset = None
    render_style = "binary"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,  # noqa: ARG002 - DRF's signature
        renderer_context: Mapping[str, Any] | None = None,  # noqa: ARG002
    ) -> bytes:
        """Return `data` as JSON; nothing for an answer without a body."""
        return b"" if data is None else to_json(data)


def to_json(data: object) -> bytes:
    """Return `data` as JSON bytes."""
    return orjson.dumps(data, default=str, option=orjson.OPT_UTC_Z)


class AlwaysJson(DefaultContentNegotiation):
    """Answers with the view's first renderer whatever `Accept` says: a webhook client with odd defaults gets JSON."""

    def select_renderer(
        self,
        request: Request,  # noqa: ARG002 - DRF's signature
        renderers: Iterable[BaseRenderer],
        format_suffix: str | None = None,  # noqa: ARG002
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer and its media type."""
        first = next(iter(renderers))
        return first, first.media_type
