"""Health checks: `/livez` (the process answers) and `/readyz` (it can do its work)."""

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from broker_project.core.database_clock import DATABASE_CLOCK
from broker_project.core.database_server import unmet_requirements

OK = "ok"


@never_cache
@require_safe
def livez(_: HttpRequest) -> JsonResponse:
    """Answer 200."""
    return JsonResponse({"status": OK})


@never_cache
@require_safe
def readyz(_: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers, is migrated and can be worked with, else 503; the rest is only reported."""
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        needed = {"database": OK, "migrations": f"{len(missing)} not applied" if missing else OK}
        with connection.wrap_database_errors:
            unmet = unmet_requirements(connection.connection)
        DATABASE_CLOCK.refresh()
    except (DatabaseError, InterfaceError):
        needed, unmet = {"database": "does not answer", "migrations": "unknown"}, []
    ready = set(needed.values()) == {OK} and not any(one.is_essential for one in unmet)
    server = "; ".join(one.otherwise for one in unmet) or OK
    reported = {"server": server, "redis": _redis(), "clock": _clock()}
    document = {"status": OK if ready else "unavailable", **needed, **reported}
    return JsonResponse(document, status=200 if ready else 503)


def _clock() -> str:
    """Return how far this machine's clock is from the database's, by which requests are signed."""
    ahead = DATABASE_CLOCK.own_clock_ahead
    return f"{abs(ahead)} s {'ahead of' if ahead > 0 else 'behind'} the database's" if ahead else OK


def _redis() -> str:
    """Return whether Redis answers. Without it publishing and delivery go on, somewhat slower."""
    wait = settings.REDIS_TIMEOUT_SECONDS
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=wait, socket_connect_timeout=wait) as client:
            client.ping()
    except redis.RedisError:
        return "does not answer"
    return OK
