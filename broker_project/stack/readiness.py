"""Whether what was started answers yet."""

import base64
import urllib.error
import urllib.request

from celery import Celery
from kombu.exceptions import OperationalError
from redis import RedisError


def answers(url: str) -> bool:
    """Say whether something answers there, with whatever status below 500."""
    try:
        with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - our own address # nosec B310
            return True
    except urllib.error.HTTPError as answer:
        return answer.code < 500  # noqa: PLR2004 - the class of server errors
    except OSError:
        return False


def lets_in(url: str, login: str) -> bool:
    """Say whether what answers there lets in who has this login, `name:password`: another stack's does not."""
    credentials = base64.b64encode(login.encode()).decode()
    request = urllib.request.Request(url, headers={"Authorization": f"Basic {credentials}"})  # noqa: S310 - our own
    try:
        with urllib.request.urlopen(request, timeout=2):  # noqa: S310 - our own address # nosec B310
            return True
    except OSError:
        return False


def is_listening(redis_url: str, worker: str) -> bool:
    """Say whether a worker answers a ping through Redis.

    Over a connection of its own: those of the pool, which a process keeps by address, may still lead to the Redis of
    an earlier stack at the same port.
    """
    with Celery(broker=redis_url, set_as_current=False) as asking:
        connection = asking.connection_for_write()
        try:
            with connection:
                return bool(asking.control.ping(destination=[worker], timeout=1.0, connection=connection))
        except (OSError, OperationalError, RedisError):
            return False
