"""Health checks, freed upload quota, and a web process that is stopped twice."""

import subprocess
import sys

import pytest
from django.db import connection
from django.test import Client, override_settings

from broker_project.stack.load.wait import PATIENCE_SECONDS


def test_a_living_process_says_so_without_a_database() -> None:
    answer = Client().get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.django_db
def test_a_process_with_a_migrated_database_is_ready() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()) == (
        200,
        {"status": "ok", "database": "ok", "migrations": "ok", "redis": "ok"},
    )


@pytest.mark.django_db
@override_settings(REDIS_URL="redis://127.0.0.1:9/0")
def test_redis_away_is_told_but_does_no_harm() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["redis"]) == (200, "does not answer")


@pytest.mark.django_db
def test_a_missing_migration_makes_it_unready() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'sessions'")
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["migrations"]) == (503, "1 not applied")


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health_is_only_read(path: str) -> None:
    assert Client().post(path).status_code == 405


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
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.stdout.split() == ["404", "404", "404"], done.stderr


TOLD_AGAIN = """
import asyncio, os, signal
from broker_project.server.rsgi import RsgiApplication
loop = asyncio.new_event_loop()
RsgiApplication().__rsgi_init__(loop)
loop.close()
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
print("it ends in its own time")
"""


def test_a_web_process_that_has_stopped_already_may_be_told_so_again() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD_AGAIN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (0, "it ends in its own time\n", False)
