"""What OpenAPI says of limits: what is answered beyond them, and the headers that tell how a key stands."""

from typing import Any, Final

from subscriptions.api.openapi import ANY_PROBLEM

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
RETRY_AFTER: Final = {
    "Retry-After": {"description": "After how many seconds to try again.", "schema": {"type": "integer", "minimum": 1}}
}
OF_ANY: Final = {
    "429": (
        "TooManyRequests",
        "Too many requests of the key, or failures from the address; or too many open messages.",
    ),
    "431": ("HeadTooLarge", "The headers have over 64 KiB, or are more than 100; the server's own answer has no body."),
    "503": ("Unavailable", "The database does not answer, or something else that is limited is taken."),
}
OF_BODIES: Final = {
    "408": ("BodyTooSlow", "The body did not arrive in time."),
    "413": ("BodyTooLarge", "The body is too large."),
}
LATER: Final = frozenset({"429", "503"})


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
