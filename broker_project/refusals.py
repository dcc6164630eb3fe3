"""Answers that the web server's side gives before Django has heard of a request: problem documents as the API's."""

import json
from typing import Final

Answer = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""

PROBLEM: Final = ("content-type", "application/problem+json")


def refusal(status: int, code: str, title: str, detail: str, *, retry_after: int | None = None) -> Answer:
    """Return the answer that says what is wrong with a request."""
    problem = {"type": f"urn:broker:{code}", "code": code, "title": title, "status": status, "detail": detail}
    retry = [] if retry_after is None else [("retry-after", str(retry_after))]
    return status, [PROBLEM, *retry], json.dumps(problem).encode()
