"""Answers that the web server's side gives before Django has heard of a request: problem documents as the API's."""

import json
from typing import Final

from broker_project.server.browser_headers import headers_for

Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""

HEADERS: Final = [
    ("content-type", "application/problem+json"),
    ("x-content-type-options", "nosniff"),
    *((name.lower(), value) for name, value in headers_for("/api/").items()),
]
"""As middleware would have them."""


def refusal(status: int, code: str, title: str, detail: str, *, retry_after: int | None = None) -> Answer:
    """Return the answer that says what is wrong with a request."""
    problem = {"type": f"urn:broker:{code}", "code": code, "title": title, "status": status, "detail": detail}
    retry = [] if retry_after is None else [("retry-after", str(retry_after))]
    return status, [*HEADERS, *retry], json.dumps(problem).encode()
