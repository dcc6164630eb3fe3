"""The table of what is broken: how, for how long, what that touches, and what it may cost."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.everything import admins, ways
from tests.faults.everything.scenes import Scene
from tests.faults.killing import LONGEST_RESTART

REDIS, POSTGRES, WEB, WORKERS, BEAT, ADMINS = "redis", "postgres", "web", "workers", "beat", "admins"
LEASE_SECONDS = 20.0
UNTIL_TAKEN_OVER = LEASE_SECONDS + 5.0
"""Who is killed again and again is started after longer and longer: then others wait for the lease."""
SHORT = 5.0
"""Seconds in which nobody may notice that Redis is away."""


@dataclass(frozen=True, slots=True)
class Breakage:
    """One fault."""

    name: str
    happen: Callable[[Scene, float], None]
    """Breaks it for so many seconds, and mends it."""
    seconds: float
    touches: frozenset[str]
    pause: float
    """Seconds in which a line that always has work may get no request, at most."""
    may_repeat: bool
    """Whether what was under way may be asked once more."""


def _of(
    name: str,
    happen: Callable[[Scene, float], None],
    *touches: str,
    seconds: float = 10.0,
    pause: float = LONGEST_RESTART,
    may_repeat: bool = True,
) -> Breakage:
    return Breakage(name, happen, seconds, frozenset(touches), pause, may_repeat)


BREAKAGES = (
    _of("redis-flushed", ways.flush, REDIS, pause=SHORT, may_repeat=False),
    _of("redis-killed", ways.kill_redis, REDIS, seconds=15.0, pause=SHORT, may_repeat=False),
    _of("redis-hung", ways.hang_redis, REDIS, seconds=25.0, pause=SHORT, may_repeat=False),
    _of("redis-away", ways.take_redis_away, REDIS, seconds=30.0, pause=SHORT, may_repeat=False),
    _of("worker-killed", ways.kill_workers, WORKERS, seconds=20.0, pause=UNTIL_TAKEN_OVER),
    _of("celery-killed", ways.kill_celery, WORKERS, BEAT),
    _of(
        "worker-frozen",
        ways.freeze_a_worker,
        WORKERS,
        seconds=1.5 * LEASE_SECONDS,
        pause=UNTIL_TAKEN_OVER + LEASE_SECONDS,
    ),
    _of("worker-asked-to-stop", ways.stop_a_worker, WORKERS, may_repeat=False),
    _of("postgresql-restarted", ways.restart_postgres, POSTGRES),
    _of("postgresql-away-60s", ways.take_postgres_away, POSTGRES, seconds=60.0, pause=60.0 + 20.0),
    _of("postgresql-sessions-ended", ways.end_sessions, POSTGRES, seconds=15.0),
    _of("web-killed", ways.kill_web, WEB, may_repeat=False),
    _of("two-fleets-three-beats", ways.double_everything, WORKERS, BEAT, REDIS, may_repeat=False),
    _of("admin-edits", admins.edit, ADMINS, may_repeat=False),
    _of("much-at-once", ways.break_much_at_once, REDIS, POSTGRES, WEB, WORKERS, BEAT, pause=2 * LONGEST_RESTART),
)
