"""Tell the workers that lines have work: hints in Redis and Celery that may be lost without harm.

The key of a line names the worker that runs it. It is empty while the line waits in the set of woken lines, and missing
otherwise. A publisher adds a line without a key to the set, and sends a task only if the set was empty: so tasks grow
under load instead of multiplying. If the key names a worker, the publisher sends the id to the channel of that worker.
A worker owns a line before it reads it, and disowns it after its release, so no new work is missed in between.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from hashlib import sha1
from typing import Any, Final, cast

import redis
import structlog
from celery import Celery
from django.conf import settings
from django.db import transaction
from kombu.exceptions import KombuError
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError
from redis.retry import Retry

from broker_project.core import boot_clock
from delivery.limits import (
    AWAKE_SECONDS,
    BREAKER_SECONDS,
    FEWEST_LINES_PER_TASK,
    LINES_PER_TASK,
    LISTEN_SECONDS,
    MAX_TASKS,
    OWNED_SECONDS,
    WOKEN_SHARES,
)
from delivery.statuses import DeliveryStatus

TURN: Final = "delivery.turn."
"""Begins the names of turns, which end with their queue: Flower shows turns by lane."""
CHANNEL: Final = "broker:worker:"
"""Begins the name of the channel on which a worker hears of new work."""
TOPIC: Final = "topic"
"""The Celery queue of subscribers' main lines."""
RETRY: Final = "retry"
"""The Celery queue of subscribers' retry lines."""
CALLBACKS: Final = "callbacks"
"""The Celery queue of replies on their way to the original URLs."""
VOLATILE: Final = "volatile"
"""The Celery queue of messages that are never stored."""

WAKE: Final = """
local was, owned = redis.call('SCARD', KEYS[1]), {}
local function wake(line)
  redis.call('SET', KEYS[1]..':line:'..line, '', 'EX', ARGV[1])
  redis.call('SADD', KEYS[1], line)
end
for i = 3, #ARGV do
  local owner = redis.call('GET', KEYS[1]..':line:'..ARGV[i])
  if not owner then
    wake(ARGV[i])
  elseif owner ~= '' then
    owned[owner] = owned[owner] or {}
    table.insert(owned[owner], ARGV[i])
  end
end
for owner, lines in pairs(owned) do
  if redis.call('PUBLISH', ARGV[2]..owner, KEYS[1]..' '..table.concat(lines, ' ')) == 0 then
    for _, line in ipairs(lines) do wake(line) end
  end
end
return (was == 0 and redis.call('SCARD', KEYS[1]) > 0) and 1 or 0
"""
"""A worker that is not subscribed any more is gone: its lines are woken like others."""

OWN: Final = """
local lines = {unpack(ARGV, 6)}
if #lines == 0 then
  local share = math.ceil(redis.call('SCARD', KEYS[1]) / ARGV[5])
  lines = redis.call('SPOP', KEYS[1], math.max(ARGV[3], math.min(share, ARGV[4])))
end
for _, line in ipairs(lines) do
  local owner = redis.call('GET', KEYS[1]..':line:'..line)
  if not owner or owner == '' then redis.call('SET', KEYS[1]..':line:'..line, ARGV[1], 'EX', ARGV[2]) end
end
return {lines, redis.call('SCARD', KEYS[1])}
"""
"""Without lines: takes a share of the woken ones. Returns also how many are left.

What another worker owns stays its own: it runs the line, or is gone.
"""

DISOWN: Final = """
for i = 2, #ARGV do
  local key = KEYS[1]..':line:'..ARGV[i]
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
"""

IN_RESULTS: Final = {DeliveryStatus.PENDING: "to be retried", DeliveryStatus.NOT_SUPPORTED: "redirected"}
"""How the result of a turn names an outcome, if not by its status."""

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
        if _run(WAKE, queue, AWAKE_SECONDS, CHANNEL, *line_ids):
            _send_turn(queue)

    return _is_served(queue) and guarded(hint)


def wake_after_commit(lines: Iterable[tuple[str, int]]) -> None:
    """Wake lines, given with their queue, once the open transaction has committed."""
    by_queue: dict[str, set[int]] = defaultdict(set)
    for queue, line_id in lines:
        by_queue[queue].add(line_id)
    for queue, line_ids in sorted(by_queue.items()):
        if transaction.get_connection().in_atomic_block:
            transaction.on_commit(partial(wake, queue, sorted(line_ids)), robust=True)
        else:  # Django would take a connection of the pool to find that out
            wake(queue, sorted(line_ids))


def wake_regardless(queue: str, line_ids: Sequence[int]) -> bool:
    """Do as `wake`, but send a task also for lines that are marked awake, unless many wait: it may have been lost."""

    def hint() -> None:
        if line_ids:
            redis_client().sadd(_set_of(queue), *line_ids)
        if redis_client().scard(_set_of(queue)) and redis_client().llen(queue) < MAX_TASKS:
            _send_turn(queue)

    return _is_served(queue) and guarded(hint)


def woken_lines(queue: str, worker: str) -> list[int]:
    """Let `worker` own a share of the woken lines, and send another task for the rest; none if Redis is away."""
    popped: list[int] = []

    def pop() -> None:
        lines, left = _own(queue, worker)
        popped.extend(map(int, lines))
        if left:
            _send_turn(queue)

    guarded(pop)
    return popped


def own(queue: str, line_ids: Sequence[int], worker: str) -> bool:
    """Let `worker` hear of new work in these lines, which it is about to claim. Never raises."""
    return not line_ids or guarded(lambda: _own(queue, worker, *line_ids))


def disown(queue: str, line_ids: Sequence[int], worker: str) -> bool:
    """Let the next publish wake these lines, which `worker` has released or could not claim. Never raises."""
    return not line_ids or guarded(lambda: _run(DISOWN, queue, worker, *line_ids))


@dataclass(slots=True, eq=False)
class Link:
    """The task that a worker runs lines for, one of the chain that carries them, and what it does (contract 4.14)."""

    root_id: str | None = None
    """The task that the chain began with; None: it begins with the next one."""
    task_id: str | None = None
    hostname: str | None = None
    """Celery's name of the worker."""
    lines_left: int = 0
    """Those that it was given and that are not let go yet; when none is, the task is done."""
    lines_run: int = 0
    outcomes: Counter[DeliveryStatus] = field(default_factory=Counter)
    """What became of the requests that were settled, and of what a script has held."""
    began_at: float = field(default_factory=lambda: boot_clock.since_boot())  # noqa: PLW0108 - tests replace it


def send_link(queue: str, line_ids: Sequence[int], link: Link) -> bool:
    """Send the turn that follows on `link`, for lines that have been released with more work. Never raises."""
    return _is_served(queue) and guarded(
        lambda: _hints().send_task(
            TURN + queue,
            args=[line_ids],
            queue=queue,
            root_id=link.root_id,
            parent_id=link.task_id,
            retry=False,
            ignore_result=True,
        )
    )


def report_done(link: Link) -> bool:
    """Let Flower know what the task of `link` has done, now that it is done. Never raises."""
    seconds = boot_clock.since_boot() - link.began_at
    counts = [f"{number} {IN_RESULTS.get(status, status.lower())}" for status, number in sorted(link.outcomes.items())]
    lines = f"{link.lines_run} line{'s' * (link.lines_run != 1)}"
    result = ", ".join([lines, *counts, f"{seconds:.1f} s"])

    def send() -> None:
        with _hints().events.default_dispatcher(hostname=link.hostname) as events:
            events.send("task-succeeded", uuid=link.task_id, result=result, runtime=seconds)

    return guarded(send)


class HintListener(threading.Thread):
    """Hears which lines of a worker have new work, and calls `hear` with their queue and ids."""

    def __init__(self, worker: str, hear: Callable[[str, list[int]], object]) -> None:
        super().__init__(name="hint-listener", daemon=True)
        self._channel = f"{CHANNEL}{worker}"
        self._hear = hear
        self._stopping = threading.Event()
        self.is_connected = False
        """Whether publishers reach it: otherwise its worker has to look for work."""

    def run(self) -> None:
        """Listen until stopped; connect again, a second later, when Redis is away."""
        while not self._stopping.is_set():
            connection = _connection()
            try:
                connection.send_command("SUBSCRIBE", self._channel)
                while not self._stopping.is_set():
                    self._take(connection)
            except FAILURES as failure:
                breaker.trip(failure)
            finally:
                self.is_connected = False
                connection.disconnect()
            self._stopping.wait(LISTEN_SECONDS)

    def stop(self) -> None:
        """Stop; its thread ends within a second."""
        self._stopping.set()

    def _take(self, connection: Any) -> None:
        try:
            said = connection.read_response(disconnect_on_error=False, push_request=True)
        except redis.TimeoutError:
            return  # nothing is new
        kind = said[0] if said else b""  # Redis may also say what redis-py has dealt with, or nobody asked for
        if kind == b"subscribe":
            self.is_connected = True
        elif kind == b"message":
            name, *line_ids = said[2].decode().split()
            self._hear(name.removeprefix(_set_of("")), [*map(int, line_ids)])


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


def listening_workers() -> list[str] | None:
    """Return the names of the workers that listen for work at this moment; None if Redis does not answer."""
    channels: list[Any] = []
    has_answered = guarded(lambda: channels.extend(redis_client().pubsub_channels(f"{CHANNEL}*")))
    return sorted(one.decode().removeprefix(CHANNEL) for one in channels) if has_answered else None


def _own(queue: str, worker: str, *line_ids: int) -> tuple[list[bytes], int]:
    """Let `worker` own these lines, or a share of the woken ones; return them, and how many are left."""
    sizes = (FEWEST_LINES_PER_TASK, LINES_PER_TASK, WOKEN_SHARES)
    return cast(tuple[list[bytes], int], _run(OWN, queue, worker, OWNED_SECONDS, *sizes, *line_ids))


def _send_turn(queue: str) -> None:
    _hints().send_task(TURN + queue, queue=queue, retry=False, ignore_result=True)


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


def _run(source: str, queue: str, *arguments: str | int) -> Any:
    """Run a script on a connection that is kept for scripts: redis-py's own way takes twice the CPU time of all else.

    Raises:
        redis.RedisError, OSError
    """
    connection = _connection()
    try:
        connection.send_command("EVALSHA", _digest_of(source), 1, _set_of(queue), *arguments)
        try:
            answer = connection.read_response()
        except NoScriptError:
            connection.send_command("EVAL", source, 1, _set_of(queue), *arguments)
            answer = connection.read_response()
    except BaseException:
        connection.disconnect()
        raise
    _idle.append(connection)
    return answer


_idle: Final[list[Any]] = []
"""Connections of redis-py that no thread uses; the one that was used last is the last."""


def _connection() -> Any:
    """Return a connection to Redis, which is open if it has been used before and Redis has not closed it since."""
    try:
        connection = _idle.pop()
    except IndexError:
        pool = redis_client().connection_pool
        return pool.connection_class(**pool.connection_kwargs)
    with suppress(*FAILURES):
        if not connection.can_read():
            return connection
    connection.disconnect()
    return connection


@cache
def _digest_of(source: str) -> str:
    """Return the name under which Redis knows a script once it has run."""
    return sha1(source.encode(), usedforsecurity=False).hexdigest()


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
