"""Requests that the web server answers in a group, and the answers that were sent."""

import asyncio
import io
import json
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvloop
from django.core.handlers.wsgi import WSGIRequest
from django.test import RequestFactory

from broker_project.core.db import forget_connection
from broker_project.server import request_groups
from broker_project.server.request_groups import RequestGroups
from broker_project.wsgi import application
from subscriptions.credentials.tokens import recent_tokens

FACTORY = RequestFactory()


class Call:
    """A POST of a group, and the answer that was sent."""

    def __init__(self, token: str, address: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        recent_tokens.add(hash(token))
        given = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **(headers or {})}
        content_type = given.pop("Content-Type")
        made = FACTORY.generic("POST", f"/api/v1/{address}", body, content_type=content_type, headers=given)
        self.environ: dict[str, Any] = made.environ | {"wsgi.input": io.BytesIO(body)}
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""

    def send(self, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        assert len(dict(headers)) == len(headers)
        self.status, self.headers, self.body = status, dict(headers), body

    @property
    def problem(self) -> str:
        """The code of the problem that was the answer."""
        return str(json.loads(self.body)["code"])

    def send_alone(self) -> None:
        """Answer as Django does, without a group."""
        answer: Any = application.get_response(WSGIRequest(self.environ))
        self.send(answer.status_code, [(name.lower(), value) for name, value in answer.items()], answer.content)


def run(answer: Callable[[RequestGroups], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine with groups that are answered in threads."""

    async def main() -> None:
        with ThreadPoolExecutor(8) as threads, ThreadPoolExecutor(1) as long_threads:
            await answer(RequestGroups(asyncio.get_running_loop(), threads, long_threads))
            long_threads.submit(forget_connection)
            for _ in range(8):
                threads.submit(forget_connection)

    uvloop.run(main())


def answer_group(calls: Iterable[Call]) -> None:
    read, _ = request_groups._read_and_done([*calls])
    for call, request, answer in read:
        request_groups._send(call, request, answer)
