"""Health checks: `/livez` (the process answers) and `/readyz` (it can do its work)."""

import redis
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

OK = "ok"


@never_cache
@require_safe
def livez(_: HttpRequest) -> JsonResponse:
    """Answer 200."""
    return JsonResponse({"status": OK})


@never_cache
@require_safe
def readyz(_: HttpRequest) -> JsonResponse:
    """Answer 200 if the database answers and is migrated, else 503. Redis is reported, but not required."""
    try:
        executor = MigrationExecutor(connection)
        missing = executor.migration_plan(executor.loader.graph.leaf_nodes())
        needed = {"database": OK, "migrations": f"{len(missing)} not applied" if missing else OK}
    except (DatabaseError, InterfaceError):
        needed = {"database": "does not answer", "migrations": "unknown"}
    ready = set(needed.values()) == {OK}
    document = {"status": OK if ready else "unavailable", **needed, "redis": _redis()}
    return JsonResponse(document, status=200 if ready else 503)


def _redis() -> str:
    """Return whether Redis answers. Without it publishing and delivery go on, somewhat slower."""
    wait = settings.REDIS_TIMEOUT_SECONDS
    try:
        with redis.Redis.from_url(settings.REDIS_URL, socket_timeout=wait, socket_connect_timeout=wait) as client:
            client.ping()
    except redis.RedisError:
        return "does not answer"
    return OK
