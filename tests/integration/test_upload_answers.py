"""When the room of a body is free again: before whoever sent it has the answer."""

import subprocess
import sys

from tests.receiver import PATIENCE

NEXT_ONE_AT_ONCE = """
import asyncio
from types import SimpleNamespace
from wsgiref.headers import Headers

from django.conf import settings

from broker_project.server.rsgi import RsgiApplication

BODY = b" " * settings.MAX_BATCH_BYTES
SCOPE = SimpleNamespace(
    method="POST", path="/nowhere", query_string="", scheme="http", http_version="1.1", authority=None,
    server="127.0.0.1:8000", client="127.0.0.1:50000",
    headers=Headers([("host", "127.0.0.1"), ("content-length", str(len(BODY)))]),
)


class Client:
    '''One that has so many bodies to send, each of them in the moment in which it has the answer to the one before.'''

    def __init__(self, loop, bodies):
        self.loop = loop
        self.next = Client(loop, bodies - 1) if bodies > 1 else None

    async def __aiter__(self):
        yield BODY

    def response_bytes(self, status, headers, body):
        print(status)
        if self.next and status == 404:
            asyncio.run_coroutine_threadsafe(RsgiApplication().__rsgi__(SCOPE, self.next), self.loop).result()


async def main():
    await RsgiApplication().__rsgi__(SCOPE, Client(asyncio.get_running_loop(), 3))


asyncio.run(main())
"""


def test_whoever_has_the_answer_to_a_large_body_finds_room_for_the_next_one() -> None:
    command = [sys.executable, "-c", NEXT_ONE_AT_ONCE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.stdout.split() == ["404", "404", "404"], done.stderr
