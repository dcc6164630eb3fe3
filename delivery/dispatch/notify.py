"""Tell the workers that lines have work: hints in Redis and Celery that may be lost without harm.

A task carries no names: a publisher marks its lines awake, puts the newly marked into a set, and sends a task only
where the set was empty. Under load tasks grow instead of multiplying.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any, Final, cast

import redis
import structlog
from celery import Celery
from django.conf import settings
from django.db import transaction
from kombu.exceptions import KombuError
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from delivery.limits import AWAKE_SECONDS, BREAKER_SECONDS, LINES_PER_TASK, MAX_TASKS

TURN: Final = "delivery.turn"
TOPIC: Final = "topic"
"""The Celery queue of subscribers' main lines."""
RETRY: Final = "retry"
"""The Celery queue of subscribers' retry lines."""
CALLBACKS: Final = "callbacks"
"""The Celery queue of replies on their way to the original URLs."""
VOLATILE: Final = "volatile"
"""The Celery queue of messages that are never stored."""

WAKE: Final = """
local was, fresh = redis.call('SCARD', KEYS[1]), 0
for i = 2, #ARGV do
  if redis.call('SET', KEYS[1]..':awake:'..ARGV[i], 1, 'NX', 'EX', ARGV[1]) then
    redis.call('SADD', KEYS[1], ARGV[i])
    fresh = fresh + 1
  end
end
return (fresh > 0 and was == 0) and 1 or 0
"""

log = structlog.get_logger(__name__)


class _Breaker:
    """Remembers a failure for a while, so that an absent Redis costs one time-out and not one a call."""

    def __init__(self) -> None:
        self._open_until = 0.0
        self._lock = threading.Lock()

    def lets_through(self) -> bool:
        return time.monotonic() >= self._open_until

    def trip(self, reason: Exception) -> None:
        with self._lock:
            first = self.lets_through()
            self._open_until = time.monotonic() + BREAKER_SECONDS
        if first:
            log.warning("wakeups.redis_away", reason=str(reason)[:200])


breaker = _Breaker()
FAILURES: Final = (redis.RedisError, KombuError, OSError)


def wake(queue: str, line_ids: Sequence[int]) -> bool:
    """Tell the workers of `queue` that these lines have work; say whether the hint was taken. Never raises."""
    if not line_ids:
        return True

    def hint() -> None:
        if _wake_script()(keys=[_set_of(queue)], args=[AWAKE_SECONDS, *line_ids]):
            _send_turn(queue)

    return _is_served(queue) and guarded(hint)


def wake_after_commit(lines: Iterable[tuple[str, int]]) -> None:
    """Wake lines, given with their queue, once the open transaction has committed."""
    by_queue: dict[str, set[int]] = defaultdict(set)
    for queue, line_id in lines:
        by_queue[queue].add(line_id)
    for queue, line_ids in sorted(by_queue.items()):
        transaction.on_commit(partial(wake, queue, sorted(line_ids)), robust=True)


def wake_regardless(queue: str, line_ids: Sequence[int]) -> bool:
    """Do as `wake`, but send a task also for lines that are marked awake, unless many wait: it may have been lost."""

    def hint() -> None:
        if line_ids:
            redis_client().sadd(_set_of(queue), *line_ids)
        if redis_client().scard(_set_of(queue)) and redis_client().llen(queue) < MAX_TASKS:
            _send_turn(queue)

    return _is_served(queue) and guarded(hint)


def woken_lines(queue: str) -> list[int]:
    """Take up to 256 woken lines, and send another task for the rest; none if Redis does not answer."""
    popped: list[int] = []

    def pop() -> None:
        popped.extend(map(int, cast(list[bytes], redis_client().spop(_set_of(queue), LINES_PER_TASK))))
        if len(popped) == LINES_PER_TASK:
            _send_turn(queue)

    guarded(pop)
    return popped


def clear_awake(queue: str, line_ids: Iterable[int]) -> bool:
    """Unmark lines that have been released, so that the next publish wakes them again. Never raises."""
    keys = [f"{_set_of(queue)}:awake:{line}" for line in line_ids]
    return not keys or guarded(lambda: redis_client().delete(*keys))


def hint(task: str, arguments: Sequence[Any], queue: str, *, shown: str | None = None) -> bool:
    """Ask the workers of `queue` for a task of another kind; tell whether the hint was taken. Never raises.

    `shown` stands in Flower instead of the arguments.
    """
    options: dict[str, Any] = {"queue": queue, "retry": False, "ignore_result": True, "argsrepr": shown}
    return guarded(lambda: _hints().send_task(task, args=arguments, **options))


def guarded(hint: Callable[[], object]) -> bool:
    """Ask Redis unless it did not answer just now; tell whether it has answered. Never raises."""
    if not breaker.lets_through():
        return False
    try:
        hint()
    except FAILURES as failure:
        breaker.trip(failure)
        return False
    return True


def _send_turn(queue: str) -> None:
    _hints().send_task(TURN, args=[queue], queue=queue, retry=False, ignore_result=True)


def _is_served(queue: str) -> bool:
    """Tell whether `queue` has workers: a QUEUE sender may have work left although there are fewer senders now."""
    return any(one.name == queue for one in settings.CELERY_TASK_QUEUES)


def _set_of(queue: str) -> str:
    return f"broker:woken:{queue}"


@cache
def redis_client() -> redis.Redis:
    """Return this process's Redis, which is asked through `guarded`."""
    patience = settings.REDIS_TIMEOUT_SECONDS
    return redis.Redis.from_url(
        settings.REDIS_URL, socket_timeout=patience, socket_connect_timeout=patience, retry=Retry(NoBackoff(), 0)
    )


@cache
def _wake_script() -> Script:
    return redis_client().register_script(WAKE)


@cache
def _hints() -> Celery:
    """Return a Celery that only sends, and gives up as quickly as `redis_client`: a hung Redis delays nobody."""
    patience = settings.REDIS_TIMEOUT_SECONDS
    hints = Celery("hints", set_as_current=False)
    hints.config_from_object("django.conf:settings", namespace="CELERY")
    hints.conf.broker_transport_options = {
        **settings.CELERY_BROKER_TRANSPORT_OPTIONS,
        "socket_timeout": patience,
        "socket_connect_timeout": patience,
        "retry_on_timeout": False,
    }
    return hints
