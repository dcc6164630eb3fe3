"""What is wrong with a running installation, and what to do: `/livez`, `/readyz` and `manage.py doctor` say it."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Final, NamedTuple

import psycopg
import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from analytics.alert_rules import is_beat_missing
from analytics.alerts import beat_seen
from broker_project.core.database_clock import DATABASE_CLOCK, described_difference
from broker_project.core.database_server import unmet_requirements
from delivery.believed_clock import is_doubted
from delivery.dispatch.notify import listening_workers
from delivery.status.line_status import LineState
from delivery.status.queue_status import senders

OK: Final = "ok"
LATE: Final = timedelta(minutes=1)
"""What a sender can send waits no longer, unless nobody sends it."""


class Finding(NamedTuple):
    """The state of one part."""

    part: str
    problem: str = ""
    """Empty: all is well."""
    advice: str = ""
    is_essential: bool = False
    """Whether no web process can work with the problem."""


def findings() -> Iterator[Finding]:
    """Yield the state of each part, first of Redis and the database: unless that can be worked with, of no other."""
    yield (of_redis := _redis())
    try:
        yield from (of_database := [*_database()])
        if any(one.problem and one.is_essential for one in of_database):
            return
        yield _clock()
        if of_redis.problem:
            yield Finding("workers", "unknown", "Redis would tell.")
        else:
            none = "" if listening_workers() else "none seen"
            yield Finding("workers", none, "Start workers: `celery -A broker_project worker`.")
        yield _senders()
        beat = "not seen" if is_beat_missing(beat_seen(), DATABASE_CLOCK.now()) else ""
        yield Finding("beat", beat, "Start `celery -A broker_project beat`: without it no summaries are made.")
    except (DatabaseError, InterfaceError):
        yield _without_connection()


def _database() -> Iterator[Finding]:
    executor = MigrationExecutor(connection)
    missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
    with connection.wrap_database_errors:
        unmet = unmet_requirements(connection.connection)
    yield Finding("database")
    if missing:
        yield Finding("migrations", f"{len(missing)} not applied", "Run `manage.py migrate`.", is_essential=True)
    else:
        yield Finding("migrations")
    problems = "; ".join(one.otherwise for one in unmet)
    yield Finding("server", problems, is_essential=any(one.is_essential for one in unmet))


def _without_connection() -> Finding:
    """Say why the database cannot be worked with: without its tables each new connection is refused, too."""
    try:
        with psycopg.connect(**connection.get_connection_params()) as server:
            ((is_empty,),) = server.execute("SELECT to_regclass('delivery_incarnation') IS NULL").fetchall()
    except psycopg.Error:
        is_empty = False
    if is_empty:
        return Finding("migrations", "not applied", "Run `manage.py migrate`.", is_essential=True)
    return Finding("database", "does not answer", "Start PostgreSQL, or correct DATABASE_URL.", is_essential=True)


def _clock() -> Finding:
    """Say whether the database's clock is believed, and how far this machine's is from it."""
    if is_doubted():
        jumped = "the database's may have jumped ahead: nothing expires for ten minutes"
        return Finding("clock", jumped, "Set it right, or run `manage.py believe_clock` if it is.")
    DATABASE_CLOCK.refresh()
    ahead = DATABASE_CLOCK.own_clock_ahead
    problem = described_difference(ahead) if ahead else ""
    return Finding("clock", problem, "Synchronize the clocks of all machines, for example with NTP.")


def _redis() -> Finding:
    """Say whether Redis answers. Without it publishing and delivery go on, somewhat slower."""
    wait = settings.REDIS_TIMEOUT_SECONDS
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=wait, socket_connect_timeout=wait) as client:
            client.ping()
    except redis.RedisError:
        return Finding("redis", "does not answer", "Start Redis, or correct REDIS_URL.")
    return Finding("redis")


def _senders() -> Finding:
    """Say which QUEUE senders nobody runs though they have work: any worker takes them over after ten seconds."""
    now = DATABASE_CLOCK.now()
    idle = [
        one.queue
        for one in senders()
        if one.line.state == LineState.WAITING and one.oldest_since and now - one.oldest_since > LATE
    ]
    problem = f"nobody sends what waits in {', '.join(idle)}" if idle else ""
    return Finding("senders", problem, "Start workers, or look at their logs.")


@never_cache
@require_safe
def livez(_: HttpRequest) -> JsonResponse:
    """Answer 200."""
    return JsonResponse({"status": OK})


@never_cache
@require_safe
def readyz(_: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers, is migrated and can be worked with, else 503; the rest is only reported."""
    found = [*findings()]
    ready = not any(one.problem and one.is_essential for one in found)
    document = {"status": OK if ready else "unavailable", **{one.part: one.problem or OK for one in found}}
    return JsonResponse(document, status=200 if ready else 503)
