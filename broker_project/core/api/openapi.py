"""The OpenAPI document: what it says about every operation (scopes, versions, problem documents, limits), served."""

import re
from functools import cache
from hashlib import sha256
from threading import Lock
from typing import Any, Final

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.renderers import OpenApiJsonRenderer2, OpenApiYamlRenderer2
from drf_spectacular.utils import OpenApiParameter

from broker_project.core.api.problems import PROBLEM_JSON

IF_MATCH: Final = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="The ETag that was read. 412 if the version is another now."
)
ETAG: Final = {
    "description": "The version. Send it as If-Match to change this version only.",
    "schema": {"type": "string"},
}
ANY_PROBLEM: Final = {
    "description": "A problem.",
    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
ERROR: Final = {
    "type": "object",
    "required": ["code", "detail"],
    "properties": {
        "pointer": {"type": "string", "description": "Where in the body: a JSON pointer, as a URI fragment."},
        "parameter": {"type": "string", "description": "Which query parameter."},
        "code": {"type": "string"},
        "detail": {"type": "string"},
    },
}
PROBLEM: Final = {
    "type": "object",
    "description": "A problem document (RFC 9457); `code` is stable, the texts are for people.",
    "required": ["type", "code", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        **{name: {"type": "string"} for name in ("code", "title", "detail")},
        "status": {"type": "integer"},
        "errors": {"type": "array", "items": ERROR},
    },
}
RETRY_AFTER: Final = {
    "Retry-After": {"description": "After how many seconds to retry.", "schema": {"type": "integer", "minimum": 1}}
}
RATE_HEADERS: Final = {
    "RateLimit-Policy": {
        "description": "How many requests (`q`) the key may send in how many seconds (`w`): "
        '`"default";q=600;w=60`. Absent without a limit.',
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "How many requests are left now (`r`), and after how many seconds all are available (`t`): "
        '`"default";r=599;t=1`.',
        "schema": {"type": "string"},
    },
}
OF_BODIES: Final = {
    "408": ("BodyTooSlow", "The body did not arrive in time."),
    "413": ("BodyTooLarge", "The body is too large."),
}
OF_ANY: Final = {
    "429": (
        "TooManyRequests",
        "Too many requests with the key, or failures from the address; or too many open messages.",
    ),
    "431": (
        "HeadTooLarge",
        "More than 64 KiB of headers, or more than 100 headers. The web server's own answer has no body.",
    ),
    "503": ("Unavailable", "The database does not answer, or another limited resource is in use."),
}


class ApiSchema(AutoSchema):
    """Adds a summary, the scope, `If-Match` where a version is checked, and the parameters of lists."""

    def get_auth(self) -> list[dict[str, list[str]]]:
        """Return the ways to authenticate, with the scope that a key needs as its role."""
        scope = self._scope()
        return [{way: [str(scope)] for way in one} if scope else one for one in super().get_auth()]

    def get_description(self) -> str:  # type: ignore[override]  # spectacular's signature, not that of DRF
        """Return the operation's docstring, and the scope that it takes."""
        text, scope = super().get_description(), self._scope()
        return f"{text}\n\nTakes a key with the scope `{scope}`." if scope else text

    def _scope(self) -> str | None:
        return getattr(self.view, "needs", {}).get(self.method.lower())

    def get_summary(self) -> str | None:
        """Return the beginning of the description, up to the first colon, semicolon or full stop."""
        return re.split(r"[;:] |\.?$", self.get_description().partition("\n")[0])[0] or None

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters that all operations of this kind have."""
        action = getattr(self.view, "action", "")
        if action == "list" and hasattr(self.view, "filters"):
            return [self.view.filters]
        versioned = getattr(self.view, "detail", False) and action != "retrieve"
        return [IF_MATCH] if versioned else []

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        """Add the fields of which exactly one must be given, if a serializer declares them as `exactly_one_of`."""
        schema = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if names := getattr(serializer, "exactly_one_of", ()):
            schema["oneOf"] = [{"required": [name]} for name in names]
        return schema


def document_problems(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: ARG001 - its hook
    """Say that bodies take no other fields, that any other answer is a problem, and which answers have an `ETag`."""
    schemas = result["components"]["schemas"]
    schemas["Problem"] = PROBLEM
    for name, schema in schemas.items():
        if name.endswith("Request"):
            schema["additionalProperties"] = False
    for operation in _operations(result):
        operation["responses"].setdefault("default", ANY_PROBLEM)
        for answer in operation["responses"].values():
            reference = answer.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
            if "version" in schemas.get(reference.rpartition("/")[2], {}).get("properties", {}):
                answer.setdefault("headers", {})["ETag"] = ETAG
    return result


def document_limits(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: ARG001 - its hook
    """Add the answers beyond limits, and the headers about a key's rate limit."""
    components = result["components"]
    components["headers"] = RATE_HEADERS | RETRY_AFTER
    rate, retry = _references(RATE_HEADERS), _references(RETRY_AFTER)
    components["responses"] = {
        name: {**ANY_PROBLEM, "description": text, "headers": rate | (retry if status in {"429", "503"} else {})}
        for status, (name, text) in (OF_ANY | OF_BODIES).items()
    }
    for operation in _operations(result):
        if operation.get("security"):
            answers = operation["responses"].items()
            operation["responses"] = {
                status: {**answer, "headers": answer.get("headers", {}) | rate} for status, answer in answers
            }
        for status, (name, _) in (OF_ANY | (OF_BODIES if "requestBody" in operation else {})).items():
            operation["responses"].setdefault(status, {"$ref": f"#/components/responses/{name}"})
    return result


def _operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for operations in document["paths"].values() for operation in operations.values()]


def _references(headers: dict[str, Any]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in headers}


RENDERERS: Final = {"json": OpenApiJsonRenderer2, "yaml": OpenApiYamlRenderer2}
_making: Final = Lock()
"""Held while the document is made: drf-spectacular's generator is not safe under threads."""


@require_safe
def openapi_document(request: HttpRequest, form: str) -> HttpResponseBase:
    """Answer with the document as `json` or `yaml`. It takes 0.2 s to make, and anybody may ask: it is made once."""
    with _making:
        body, etag = _made(form)
    headers = {"ETag": etag, "Cache-Control": "max-age=60"}
    answer = HttpResponse(body, content_type=RENDERERS[form].media_type, headers=headers)
    return get_conditional_response(request, etag=etag, response=answer) or answer


@cache
def _made(form: str) -> tuple[bytes, str]:
    """Return the document and its ETag."""
    generator: Any = SchemaGenerator
    renderer: Any = RENDERERS[form]
    body: bytes = renderer().render(generator().get_schema(request=None, public=True), None, {})
    return body, f'"{sha256(body).hexdigest()[:32]}"'
