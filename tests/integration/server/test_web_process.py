"""Health checks, freed upload quota, and a web process that is stopped twice."""

import encodings
import re
import subprocess
import sys
import time
from typing import Any

import psycopg
import pytest
from celery import Celery
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings
from structlog.testing import capture_logs

from broker_project import health
from broker_project.core import database_server, db
from broker_project.core.database_server import IS_STANDBY, Requirement, check_server_at_start
from broker_project.management.commands import doctor
from broker_project.server.runtime import sparingly, tune_runtime
from broker_project.stack.load.wait import PATIENCE_SECONDS
from broker_project.stack.ports import LOOPBACK, any_free
from delivery.maintenance.incarnation import Guard
from delivery.models import Line
from tests.support import factories
from tests.support.database import execute


def test_livez_answers_without_a_database() -> None:
    answer = Client().get("/livez")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(("computed", "rest"), [(0.01, 0.03), (1.0, 0.5)])
def test_strangers_leave_python_to_others(monkeypatch: pytest.MonkeyPatch, computed: float, rest: float) -> None:
    clock, rests = iter([1.0, 1.0 + computed]), list[float]()
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(time, "sleep", rests.append)
    sparingly(lambda: None)
    assert rests == [pytest.approx(rest)]


def test_charsets_that_clients_invent_are_not_remembered() -> None:
    tune_runtime()
    remembered = encodings._cache.copy()
    for charset in ("no-such-charset", "no-such-charset-either"):
        assert Client().get("/livez", CONTENT_TYPE=f"text/plain; charset={charset}").status_code == 200
    assert encodings._cache == remembered


@pytest.fixture
def _no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "listening_workers", list)  # those of other tests listen to the same Redis


@pytest.mark.django_db
@pytest.mark.usefixtures("_no_workers")
def test_readyz_answers_200_with_a_migrated_database() -> None:
    answer = Client().get("/readyz")
    unsafe = (  # as servers of tests are
        "fsync is off: a power cut loses accepted events; full_page_writes is off: a power cut can corrupt tables;"
        " synchronous_commit is off: a crash of PostgreSQL loses accepted events"
    )
    fine = {"status": "ok", "database": "ok", "migrations": "ok", "server": unsafe, "redis": "ok", "clock": "ok"}
    nobody = {"workers": "none seen", "senders": "ok", "beat": "not seen"}
    assert (answer.status_code, answer.json()) == (200, fine | nobody)


@pytest.mark.django_db
@pytest.mark.usefixtures("_no_workers")
def test_the_doctor_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    Line.objects.create(subscriber=factories.subscriber("twice"), lane="main", epoch=1)
    with pytest.raises(SystemExit, match="1"):
        call_command("doctor")
    said = capsys.readouterr().out
    assert "wrong lines: two lines in one lane, so no order: twice\n" in said
    assert "wrong workers: none seen\n      Start workers: `celery -A broker_project worker`.\n" in said
    assert ("ok    database\n" in said, "wrong queues: no worker consumes topic, retry, queue.0" in said) == (
        True,
        True,
    )


@pytest.mark.django_db
def test_the_doctor_goes_on_without_redis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with Celery(broker=f"redis://{LOOPBACK}:{any_free()}/0", set_as_current=False) as app:
        monkeypatch.setattr(doctor, "app", app)
        with pytest.raises(SystemExit, match="1"):
            call_command("doctor")
    said = capsys.readouterr().out
    assert "wrong queues: unknown\n      Redis would tell.\n" in said
    assert re.search("^(ok   |wrong) settings", said, re.MULTILINE)


@pytest.mark.django_db
def test_a_pooler_in_between_is_recognized_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psycopg.ConnectionInfo, "backend_pid", 1)  # as PgBouncer has it: not the session's
    answer = Client().get("/readyz")
    assert (answer.status_code, "PgBouncer" in answer.json()["server"]) == (503, True)
    with pytest.raises(SystemExit, match=r"^broker: a connection pooler such as PgBouncer .*\.$"):
        check_server_at_start()


@pytest.mark.django_db
@pytest.mark.behaviour("4.10")
def test_a_standby_is_waited_for_as_if_it_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    standby = [Requirement("false", IS_STANDBY)]
    monkeypatch.setattr(database_server, "unmet_requirements", lambda _server: standby)
    with capture_logs() as logged:
        check_server_at_start()
    assert [one["event"] for one in logged] == ["database.not_checked"]


@pytest.mark.django_db(transaction=True)
def test_a_database_in_another_encoding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    execute("CREATE DATABASE in_latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE_PROVIDER libc LOCALE 'C'")
    monkeypatch.setitem(connection.settings_dict, "NAME", "in_latin1")
    said = r"^broker: the database's encoding is not UTF8: create it with ENCODING 'UTF8'\.$"
    try:
        with pytest.raises(SystemExit, match=said):
            check_server_at_start()
    finally:
        monkeypatch.undo()
        execute("DROP DATABASE in_latin1 WITH (FORCE)")


@pytest.mark.django_db
@override_settings(REDIS_URL="redis://127.0.0.1:9/0")
def test_readyz_reports_an_unreachable_redis_with_200() -> None:
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["redis"]) == (200, "does not answer")


@pytest.mark.django_db
def test_readyz_answers_503_with_a_missing_migration() -> None:
    execute("DELETE FROM django_migrations WHERE app = 'sessions'")
    answer = Client().get("/readyz")
    assert (answer.status_code, answer.json()["migrations"]) == (503, "1 not applied")
    execute("DROP TABLE django_celery_beat_periodictask CASCADE")
    assert Client().get("/readyz").json()["database"] == "ok", "what lacks is a table, and is said"


@pytest.mark.django_db(transaction=True)
def test_readyz_says_that_a_database_without_tables_is_to_be_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    execute("CREATE DATABASE without_tables")
    monkeypatch.setitem(connection.settings_dict, "NAME", "without_tables")
    monkeypatch.setattr(db, "on_connect", [Guard()])
    pooled: Any = connection  # the stubs lack the pool
    pooled.close()
    pooled.close_pool()
    try:
        answer = Client().get("/readyz")
    finally:
        monkeypatch.undo()
        pooled.close()
        pooled.close_pool()
        execute("DROP DATABASE without_tables WITH (FORCE)")
    assert (answer.status_code, answer.json().get("migrations")) == (503, "not applied")


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health_checks_accept_only_safe_methods(path: str) -> None:
    assert Client().post(path).status_code == 405


def done(program: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in a process of its own."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


SERVER = """
import asyncio, threading
from types import SimpleNamespace
from wsgiref.headers import Headers

from django.conf import settings

from broker_project.server import rsgi


def scope_of(method, path, *headers):
    return SimpleNamespace(
        method=method, path=path, query_string="", scheme="http", http_version="1.1", authority=None,
        server="127.0.0.1:8000", client="127.0.0.1:50000", headers=Headers([("host", "127.0.0.1"), *headers]),
    )
"""
SEND_AFTER_EACH_ANSWER = f"""{SERVER}
BODY = b" " * settings.MAX_BATCH_BYTES
SCOPE = scope_of("POST", "/nowhere", ("content-length", str(len(BODY))))


class Client:
    '''Sends the next large body as soon as it has the answer to the last one.'''

    def __init__(self, loop, bodies):
        self.loop = loop
        self.next = Client(loop, bodies - 1) if bodies > 1 else None

    async def __aiter__(self):
        yield BODY

    def response_bytes(self, status, headers, body):
        print(status)
        if self.next and status == 404:
            asyncio.run_coroutine_threadsafe(rsgi.application.__rsgi__(SCOPE, self.next), self.loop).result()


async def main():
    loop = asyncio.get_running_loop()
    rsgi.application.__rsgi_init__(loop)
    await rsgi.application.__rsgi__(SCOPE, Client(loop, 3))


asyncio.run(main())
"""


def test_upload_quota_is_free_when_the_answer_arrives() -> None:
    found = done(SEND_AFTER_EACH_ANSWER)
    assert found.stdout.split() == ["404", "404", "404"], found.stderr


STRANGERS = f"""{SERVER}
asked, hold = [], threading.Event()


def answer_some_at_once(environ, start):
    path = environ["PATH_INFO"]
    if "HTTP_AUTHORIZATION" not in environ and path in ("/admin/", "/readyz"):
        hold.wait()
    asked.append(path)
    start("200 OK", [])
    return [b""]


rsgi.wsgi_application = answer_some_at_once
KEY = ("authorization", "Bearer brk_" + "a" * 43)


def asking(path, *headers, method="GET"):
    answer = SimpleNamespace(response_bytes=lambda status, headers, body: None)
    return rsgi.application.__rsgi__(scope_of(method, path, *headers), answer)


async def main():
    rsgi.application.__rsgi_init__(asyncio.get_running_loop())
    hanging = [asyncio.ensure_future(asking("/admin/")) for _ in range(settings.WEB_THREADS * 2)]
    hanging += [asyncio.ensure_future(asking("/readyz", method=method)) for method in ("GET", "HEAD")]
    await asyncio.sleep(0)
    others = [asking("/api/v1/messages", KEY), asking("/api/v1/callbacks/token", method="POST")]
    await asyncio.gather(*others, *[asking("/livez") for _ in range(100)])
    print(sorted(asked))
    hold.set()
    await asyncio.gather(*hanging)


asyncio.run(main())
"""


def test_people_and_a_database_that_hangs_hold_up_neither_keys_nor_replies_nor_livez() -> None:
    found = done(STRANGERS)
    assert found.stdout == "['/api/v1/callbacks/token', '/api/v1/messages', '/livez']\n", found.stderr


SIGNAL_AFTER_CLOSE = """
import asyncio, os, signal
from broker_project.server.rsgi import RsgiApplication
loop = asyncio.new_event_loop()
RsgiApplication().__rsgi_init__(loop)
loop.close()
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
print("still running")
"""


def test_a_signal_after_the_loop_has_closed_is_ignored() -> None:
    found = done(SIGNAL_AFTER_CLOSE)
    assert (found.returncode, found.stdout, "Traceback" in found.stderr) == (0, "still running\n", False)
