"""kombu's Redis, whose rubbish ends no worker; and which Redis is refused.

kombu decodes what it takes from a queue without a handler for errors, and Celery ends the process for one that it does
not expect. Tasks are only hints, so what cannot be read is logged and dropped: it has left its queue already.
"""

import contextlib
import sys
from collections.abc import Callable
from queue import Empty
from typing import Any, Final

import structlog
from kombu.transport import TRANSPORT_ALIASES, redis
from redis import Redis, RedisError, ResponseError

RUBBISH: Final = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Raised for what is not JSON, or not as kombu and Celery write messages."""
TIMEOUT_SECONDS: Final = 5
CLUSTER: Final = (
    "REDIS_URL leads to a Redis Cluster, which refuses scripts with keys of several slots: use a single Redis, or one"
    " that fails over to a replica"
)

log = structlog.get_logger(__name__)


class Channel(redis.Channel):
    """Drops what it cannot read."""

    def _brpop_read(self, **options: Any) -> Any:
        return _read(super()._brpop_read, **options)  # type: ignore[misc]  # the stubs lack it

    def _receive(self) -> Any:
        return _read(super()._receive)  # type: ignore[misc]


class Transport(redis.Transport):
    """Has such channels."""

    Channel = Channel
    brpop_timeout = 3
    """Seconds after which a worker without tasks asks again; one that stops waits for the answer."""


def _read(read: Callable[..., Any], **options: Any) -> Any:
    try:
        return read(**options)
    except RUBBISH as failure:
        log.warning("redis.message_dropped", reason=failure, hint="who else writes to this Redis?")
        raise Empty from None  # there is nothing to read, says kombu with it


def use_transport() -> None:
    """Let kombu take this for addresses of Redis."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:{Transport.__name__}"))


def is_redis_cluster(address: str) -> bool:
    """Return whether a Redis says that it is part of a cluster; raise `RedisError` or `ValueError` if it is away."""
    with Redis.from_url(address, socket_connect_timeout=TIMEOUT_SECONDS, socket_timeout=TIMEOUT_SECONDS) as client:
        client.ping()
        with contextlib.suppress(ResponseError):  # it lets nobody ask
            return bool(client.info("cluster").get("cluster_enabled"))
    return False


def check_redis_at_start(address: str) -> None:
    """End the process with one line if the broker cannot work with this Redis; one that is away may come back."""
    with contextlib.suppress(RedisError, ValueError):
        if is_redis_cluster(address):
            sys.exit(f"broker: {CLUSTER}.")
