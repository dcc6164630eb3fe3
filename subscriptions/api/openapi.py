"""What OpenAPI says of every operation: keys, versions, problem documents, limits."""

import re
from typing import Any, Final

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter

from broker_project.core.api.problems import PROBLEM_JSON
from subscriptions.credentials.tokens import SCHEME
from subscriptions.models import Scope

IF_MATCH: Final = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="The ETag that was read; another version by now: 412."
)
ETAG: Final = {"description": "The version; send it as If-Match to change just that.", "schema": {"type": "string"}}


ANY_PROBLEM: Final = {
    "description": "A problem.",
    "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
}

RETRY_AFTER: Final = {
    "Retry-After": {"description": "After how many seconds to try again.", "schema": {"type": "integer", "minimum": 1}}
}


OF_BODIES: Final = {
    "408": ("BodyTooSlow", "The body did not arrive in time."),
    "413": ("BodyTooLarge", "The body is too large."),
}
LATER: Final = frozenset({"429", "503"})

ERROR: Final = {
    "type": "object",
    "required": ["code", "detail"],
    "properties": {
        "pointer": {"type": "string", "description": "What in the body: a JSON pointer, as a URI fragment."},
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
        "code": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {"type": "array", "items": ERROR},
    },
}


class BearerKeys(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """The security scheme of `ApiKeyAuthentication`."""

    target_class = "subscriptions.api.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: AutoSchema) -> dict[str, Any]:  # noqa: ARG002 - its signature
        """Return the scheme."""
        return {"type": "http", "scheme": SCHEME.lower(), "description": "An API key: `Authorization: Bearer brk_…`."}


class ApiSchema(AutoSchema):
    """Adds a summary, `If-Match` where a version is checked, and a list's own query parameters."""

    def get_auth(self) -> list[dict[str, list[str]]]:
        """Return the ways to authenticate, with the scope that a key needs as its role."""
        scope = self._scope()
        return [{way: [str(scope)] for way in one} if scope else one for one in super().get_auth()]

    def get_description(self) -> str:  # type: ignore[override]  # spectacular's signature, not that of DRF
        """Return what is said of an operation, and which scope it takes."""
        text, scope = super().get_description(), self._scope()
        return f"{text}\n\nTakes a key with the scope `{scope}`." if scope else text

    def _scope(self) -> Scope | None:
        return getattr(self.view, "needs", {}).get(self.method.lower())

    def get_summary(self) -> str | None:
        """Return the beginning of what is said of an operation: what it does, without the particulars."""
        return re.split(r"[;:] |\.?$", self.get_description().partition("\n")[0])[0] or None

    def get_override_parameters(self) -> list[Any]:
        """Return the parameters that all operations of this sort have."""
        action = getattr(self.view, "action", "")
        query_class = getattr(self.view, "query_class", None)
        if action == "list" and query_class:
            return [query_class]
        versioned = getattr(self.view, "detail", False) and action != "retrieve"
        return [IF_MATCH] if versioned else []

    def _map_basic_serializer(self, serializer: Any, direction: Any) -> Any:
        """Say of which fields exactly one is there, where a serializer does: `exactly_one_of`."""
        schema = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if names := getattr(serializer, "exactly_one_of", ()):
            schema["oneOf"] = [{"required": [name]} for name in names]
        return schema


def document_problems(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: ARG001 - its hook
    """Say that bodies take no other fields, that any other answer is a problem, and what has an `ETag`."""
    schemas = result["components"]["schemas"]
    schemas["Problem"] = PROBLEM
    for name, schema in schemas.items():
        if name.endswith("Request"):
            schema["additionalProperties"] = False
    for operations in result["paths"].values():
        for operation in operations.values():
            operation["responses"].setdefault("default", ANY_PROBLEM)
            _document_etag(operation, schemas)
    return result


def _document_etag(operation: dict[str, Any], schemas: dict[str, Any]) -> None:
    for answer in operation["responses"].values():
        reference = answer.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
        if "version" in schemas.get(reference.rpartition("/")[2], {}).get("properties", {}):
            answer.setdefault("headers", {})["ETag"] = ETAG


HEADERS: Final = {
    "RateLimit-Policy": {
        "description": 'How many requests the key may send (`q`) in so many seconds (`w`): `"default";q=600;w=60`. '
        "Only where it is limited.",
        "schema": {"type": "string"},
    },
    "RateLimit": {
        "description": "How many of them are left at once (`r`), and after how many seconds all are again (`t`): "
        '`"default";r=599;t=1`.',
        "schema": {"type": "string"},
    },
}


OF_ANY: Final = {
    "429": (
        "TooManyRequests",
        "Too many requests of the key, or failures from the address; or too many open messages.",
    ),
    "431": ("HeadTooLarge", "The headers have over 64 KiB, or are more than 100; the server's own answer has no body."),
    "503": ("Unavailable", "The database does not answer, or something else that is limited is taken."),
}


def document_limits(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: ARG001 - its hook
    """Add the answers beyond limits, and the headers of whoever has a key."""
    components = result["components"]
    components["headers"] = HEADERS | RETRY_AFTER
    components["responses"] = {name: _answer(status, text) for status, (name, text) in (OF_ANY | OF_BODIES).items()}
    for operations in result["paths"].values():
        for operation in operations.values():
            _document(operation)
    return result


def _answer(status: str, text: str) -> dict[str, Any]:
    names = [*HEADERS, *RETRY_AFTER] if status in LATER else [*HEADERS]
    return {**ANY_PROBLEM, "description": text, "headers": _references(names)}


def _document(operation: dict[str, Any]) -> None:
    answers = operation["responses"]
    if operation.get("security"):
        told = _references([*HEADERS])
        operation["responses"] = answers = {
            status: {**answer, "headers": answer.get("headers", {}) | told} for status, answer in answers.items()
        }
    for status, (name, _) in (OF_ANY | (OF_BODIES if "requestBody" in operation else {})).items():
        answers.setdefault(status, {"$ref": f"#/components/responses/{name}"})


def _references(names: list[str]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
