"""Whether what was started answers yet."""

import urllib.error
import urllib.request

from celery import Celery


def answers(url: str) -> bool:
    """Say whether something answers there, with whatever status below 500."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - our own address # nosec B310
            return True
    except urllib.error.HTTPError as answer:
        return answer.code < 500  # noqa: PLR2004 - the class of server errors
    except OSError:
        return False


def is_listening(redis_url: str, worker: str) -> bool:
    """Say whether a worker answers a ping through Redis.

    Over a connection of its own: those of the pool, which a process keeps by address, may still lead to the Redis of
    an earlier stack at the same port.
    """
    with Celery(broker=redis_url, set_as_current=False) as asking, asking.connection_for_write() as connection:
        try:
            return bool(asking.control.ping(destination=[worker], timeout=1.0, connection=connection))
        except OSError:
            return False
