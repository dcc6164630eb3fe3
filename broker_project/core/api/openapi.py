"""The API's documentation: the OpenAPI document, with each operation's scope and problems, and the page of problems."""

import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from itertools import groupby
from threading import Lock
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.cache import get_conditional_response
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.renderers import OpenApiJsonRenderer2, OpenApiYamlRenderer2
from drf_spectacular.utils import OpenApiParameter

from broker_project.core.api.bodies import RawParser
from broker_project.core.api.examples import example_of
from broker_project.core.api.problems import PROBLEM_JSON

TAGS: Final = {
    "events": "Publish events, one or a batch, or ask what publishing would do.",
    "messages": "What was published, and who gets it.",
    "deliveries": "One message for one subscription: its status and its attempts.",
    "dead-letters": "Deliveries that ended without success, and are not sent again unless someone resubmits them.",
    "replays": "Send many deliveries again, or older messages to a new subscription.",
    "mailboxes": "Fetch messages instead of being called, and acknowledge them.",
    "callbacks": "Results that endpoints of QUEUE events post.",
    "subscribers": "Who receives events: settings, lines, and pauses.",
    "subscriptions": "Which events go to which endpoint of a subscriber, and how.",
    "event-types": "What can be published, with schemas.",
    "publishers": "Who publishes events.",
    "api-keys": "Keys of publishers, subscribers and management.",
    "retry-policies": "What happens after a delivery has failed.",
    "filters": "Try a filter before a subscription has it.",
    "scripts": "Try a script, which changes what is sent, or answers instead of an endpoint.",
    "senders": "What the senders of QUEUE events do.",
    "summaries": "What happened in each hour and day, summarized by Spark.",
    "summary-runs": "The runs that make the summaries.",
    "metrics": "Numbers for Prometheus.",
}
"""The groups of operations, in the order in which they are needed, by the first part of the path."""
VERBS: Final = {"retrieve": "read", "partial_update": "update", "destroy": "delete"}
"""What operation ids call actions on records, where DRF has another word."""
ON_ANY: Final = frozenset({"too_many_requests", "head_too_large", "database_unavailable"})
WITH_KEY: Final = frozenset({"unauthenticated", "missing_scope"})
WITH_BODY: Final = frozenset({"body_too_slow", "body_too_large", "encoded_body", "no_room"})
WITH_JSON: Final = frozenset({"malformed_body", "invalid", "unstorable_value", "unsupported_media_type"})
"""Problems that all operations of a kind can answer with; a view declares others as `problems`."""

METHODS: Final = ("get", "post", "patch", "delete")
RESPONSES: Final = "#/components/responses/"
OTHER: Final = "problem"

IF_MATCH: Final = OpenApiParameter(
    "If-Match", str, OpenApiParameter.HEADER, description="The ETag that was read. 412 if the version is another now."
)
ETAG: Final = {
    "description": "The version. Send it as If-Match to change this version only.",
    "schema": {"type": "string"},
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
        "type": {"type": "string", "format": "uri-reference", "description": "Its row in the page of problems."},
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


class DocumentedProblem(NamedTuple):
    """A row of `docs/reference/problems.md`."""

    code: str
    status: str
    meaning: str
    advice: str


_ROW: Final = re.compile(r"^\| `(\w+)` \| (\d{3}) \| (.+) \| (.+) \|$", re.MULTILINE)
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")


@cache
def documented_problems() -> dict[str, DocumentedProblem]:
    """Return all problems by their code, in its order."""
    text = (settings.BASE_DIR / "docs" / "reference" / "problems.md").read_text()
    return {row[0]: DocumentedProblem(*row) for row in _ROW.findall(_LINK.sub(r"\1", text))}


def status_of(code: str) -> str:
    """Return the status of a problem."""
    return documented_problems()[code].status


def names_of(list_name: str) -> tuple[str, str, str]:
    """Return what a list's records are called: "an", "event type", "event types"."""
    one = re.sub("ies$", "y", list_name).removesuffix("s")
    return "an" if one[0] in "aeiouA" else "a", one, list_name


class ApiSchema(AutoSchema):
    """Adds a summary, the scope, `If-Match` where a version is checked, the parameters of lists, and problems."""

    def get_operation(self, *address: Any) -> Any:
        """Return the operation with its problems by their status, and the headers about the key's rate limit."""
        operation: Any = super().get_operation(*address)
        answers = operation["responses"]
        if operation.get("security"):
            for answer in answers.values():
                answer["headers"] = answer.get("headers", {}) | _references(RATE_HEADERS)
        codes = sorted({*self._problem_codes(operation)}, key=lambda code: (status_of(code), code))
        for status, some in groupby(codes, status_of):
            answers.setdefault(status, {"$ref": RESPONSES + ".".join(some)})
        answers["default"] = {"$ref": RESPONSES + OTHER}
        return operation

    def _problem_codes(self, operation: dict[str, Any]) -> Iterator[str]:
        parameters = operation.get("parameters", ())
        places, names = {one["in"] for one in parameters}, {one["name"] for one in parameters}
        action = getattr(self.view, "action", self.method.lower())
        declared = getattr(self.view, "problems", {}).get(action, ())
        yield from (*ON_ANY, *declared)
        if operation.get("security"):
            yield from WITH_KEY
            if self.method != "GET" or hasattr(self.view.permission_classes[0], "kinds"):
                yield "forbidden"
        if "path" in places and "404" not in map(status_of, declared):
            yield "not_found"
        if "query" in places:
            yield "invalid_query"
        if IF_MATCH.name in names:
            yield "version_mismatch"
        if self.method != "GET":
            yield from WITH_BODY
            yield from () if RawParser in self.view.parser_classes else WITH_JSON

    def get_tags(self) -> list[str]:
        """Return the first part of the path."""
        return super().get_tags()[:1]

    def get_operation_id(self) -> str:
        """Return the action with the name of its records; other operations have their own."""
        view: Any = self.view
        _, one, several = names_of(view.order.list_name)
        verb = VERBS.get(view.action, view.action)
        name = f"list_{several}" if verb == "list" else f"{verb}_of_{one}" if "_" in verb else f"{verb}_{one}"
        return name.lower().replace(" ", "_")

    def get_auth(self) -> list[dict[str, list[str]]]:
        """Return the ways to authenticate, with the scope that a key needs as its role."""
        scope = self._scope()
        return [{way: [str(scope)] for way in one} if scope else one for one in super().get_auth()]

    def get_description(self) -> str:  # type: ignore[override]  # spectacular's signature, not that of DRF
        """Return the operation's docstring, with the name of its records, and the scope that it takes."""
        text, scope = super().get_description(), self._scope()
        if hasattr(self.view, "order"):
            article, one, several = names_of(self.view.order.list_name)
            text = re.sub(r"\brecords\b", several, text.replace("a record", f"{article} {one}"))
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
        """Add what a serializer declares: an `example` of requests, and fields of which it takes `exactly_one_of`."""
        schema = super()._map_basic_serializer(serializer, direction)  # type: ignore[no-untyped-call]
        if names := getattr(serializer, "exactly_one_of", ()):
            schema["oneOf"] = [{"required": [name]} for name in names]
        if direction == "request" and (example := getattr(serializer, "example", None)):
            schema["examples"] = [example]
        return schema


def problem_response(name: str) -> dict[str, Any]:
    """Return the answer with one of the problems whose codes are the parts of a component's name."""
    codes = [] if name == OTHER else name.split(".")
    lines = [f"[{code}](/api/docs/problems#{code}): {documented_problems()[code].meaning}" for code in codes]
    retries = {"429", "503"} & {*map(status_of, codes)}
    return {
        "description": "\n".join(f"- {line}" for line in lines) or "Another [problem](/api/docs/problems).",
        "headers": _references(RATE_HEADERS | (RETRY_AFTER if retries else {})),
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def complete_document(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:  # noqa: ARG001 - its hook
    """Add what several operations share: tags, problems, headers and examples."""
    schemas = result["components"]["schemas"]
    schemas["Problem"] = PROBLEM
    for name, schema in schemas.items():
        if name.endswith("Request"):
            schema["additionalProperties"] = False
            # a change takes fewer fields than a creation
            schema["examples"] = [
                {field: value for field, value in example.items() if field in schema["properties"]}
                for example in schema["examples"]
            ]
        elif schema.get("type") == "object":
            schema["examples"] = [example_of(schema, schemas, name)]
    result["components"] |= {"headers": RATE_HEADERS | RETRY_AFTER, "responses": {}}
    result["tags"] = [{"name": name, "description": text} for name, text in TAGS.items()]
    for path, operations in result["paths"].items():
        result["paths"][path] = {method: operations[method] for method in METHODS if method in operations}
        for operation in operations.values():
            _complete_answers(operation, result["components"])
    return result


def _complete_answers(operation: dict[str, Any], components: dict[str, Any]) -> None:
    """Describe the problems that an operation refers to, and say which answers have an `ETag`."""
    for answer in operation["responses"].values():
        if name := answer.get("$ref", "").removeprefix(RESPONSES):
            components["responses"][name] = problem_response(name)
        reference = answer.get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
        if "version" in components["schemas"].get(reference.rpartition("/")[2], {}).get("properties", {}):
            answer.setdefault("headers", {})["ETag"] = ETAG


def _references(headers: dict[str, Any]) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in headers}


@require_safe
def problems_page(request: HttpRequest) -> HttpResponse:
    """Answer with the page that the `type` of every problem leads to."""
    rows = [problem._asdict() for problem in documented_problems().values()]
    shown = [{name: text.replace("`", "") for name, text in row.items()} for row in rows]
    return render(request, "broker_project/api_problems.html", {"problems": shown})


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
