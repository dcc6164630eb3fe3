"""Faults that last some seconds, and plans that draw them from a seed."""

import itertools
import signal
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass

from broker_project.stack.load.wait import wait_until
from broker_project.stack.supervisor import Child
from tests.support.faults import other_workloads
from tests.support.faults.breakage import (
    MAX_RESTART,
    away,
    flush_redis,
    frozen,
    more_beats,
    more_workers,
    restarted,
    send,
    terminate_a_backend,
    terminating,
)
from tests.support.faults.figures import STORES_NOTHING, TAKEN_OVER, promised_pause
from tests.support.faults.workload import FaultContext, dice

FLUSH_EVERY = 2.0
KILL_EVERY = 5.0
WEB_KILL_EVERY = 3.0
END_EVERY = 0.5
MOMENT = 0.5

REDIS, POSTGRES, WEB, WORKERS, BEAT, ADMINS = "redis", "postgres", "web", "workers", "beat", "admins"
LEASE_SECONDS = 20.0
UNTIL_TAKEN_OVER = promised_pause(TAKEN_OVER)
"""A process that is killed repeatedly is restarted after longer and longer pauses; then others wait for the lease."""
SHORT = promised_pause("Redis does not work")

BETWEEN_SECONDS = (1.0, 6.0)
"""From one step's end to the next, at least and at most."""
BRIEF_SECONDS = (0.5, 8.0)
LONG_EVERY = 12
"""One step in this many takes as long as in the case of its own; the others are brief."""
TWO_EVERY = 4
"""One step in this many breaks two things at once; the others break one."""


def some_worker(context: FaultContext) -> Child:
    """Return a worker that runs: one that keeps ending is restarted after longer and longer pauses."""
    there: list[Child] = []
    wait_until(lambda: there.extend(worker for worker in context.broker.workers() if worker.pid) or there)  # type: ignore[func-returns-value]
    return context.random.choice(there)


def flush(context: FaultContext, seconds: float) -> None:
    """Flush Redis every two seconds."""
    for _ in context.again_and_again(seconds, FLUSH_EVERY):
        with context.fault():
            flush_redis(context.broker)


def kill_redis(context: FaultContext, seconds: float) -> None:
    """Kill Redis every five seconds; it is back at once, and empty."""
    for _ in context.again_and_again(seconds, KILL_EVERY):
        with context.fault(), away(context.process("redis")):
            time.sleep(MOMENT)


def take_redis_away(context: FaultContext, seconds: float) -> None:
    with context.fault(), away(context.process("redis")):
        time.sleep(seconds)


def hang_redis(context: FaultContext, seconds: float) -> None:
    with context.fault(), frozen(context.process("redis")):
        time.sleep(seconds)


def kill_workers(context: FaultContext, seconds: float) -> None:
    """Kill a worker every five seconds, at random."""
    for _ in context.again_and_again(seconds, KILL_EVERY):
        victim = some_worker(context)
        with context.fault():
            victim.kill()


def kill_celery(context: FaultContext, _seconds: float) -> None:
    """Kill every worker and beat at once."""
    celery = [*context.broker.workers(), context.process("analytics"), context.process("beat")]
    with restarted(*celery), context.fault():
        for child in celery:
            child.kill()


def freeze_a_worker(context: FaultContext, seconds: float) -> None:
    """Let a worker stand still; what it had under way may be asked again from then on."""
    with frozen(some_worker(context)):
        with context.fault():
            pass
        time.sleep(seconds)
    with context.fault():
        pass  # what it had begun to send or to settle


def stop_a_worker(context: FaultContext, _seconds: float) -> None:
    """Ask a worker to stop; it is started again."""
    worker = some_worker(context)
    with restarted(worker), context.fault():
        send(signal.SIGTERM, worker)


def restart_postgres(context: FaultContext, _seconds: float) -> None:
    postgres = context.process("postgres")
    with context.fault(), restarted(postgres):
        send(signal.SIGQUIT, postgres)


def take_postgres_away(context: FaultContext, seconds: float) -> None:
    with context.fault(), away(context.process("postgres")):
        time.sleep(seconds)


def end_sessions(context: FaultContext, seconds: float) -> None:
    """End a database session every half second, at random."""
    with terminating(context.broker) as connection:
        for _ in context.again_and_again(seconds, END_EVERY):
            with context.fault():
                terminate_a_backend(connection)


def kill_web(context: FaultContext, seconds: float) -> None:
    """Kill the web process every three seconds."""
    for _ in context.again_and_again(seconds, WEB_KILL_EVERY):
        with context.fault(of_web=True), away(context.process("web")):
            pass


def double_everything(context: FaultContext, seconds: float) -> None:
    """Run a second fleet of workers, and two beats more."""
    with more_workers(context.broker), more_beats(context.broker, 2):
        time.sleep(seconds)


def break_much_at_once(context: FaultContext, seconds: float) -> None:
    """Hang Redis, and while it hangs kill a worker, restart PostgreSQL, kill the web process and then all of Celery."""
    redis, postgres, web = (context.process(name) for name in ("redis", "postgres", "web"))
    with context.fault(of_web=True), frozen(redis), ExitStack() as all_at_once:
        some_worker(context).kill()
        all_at_once.enter_context(away(web))
        all_at_once.enter_context(away(postgres))
        time.sleep(seconds)
    kill_celery(context, 0)


@dataclass(frozen=True, slots=True)
class Breakage:
    """One fault."""

    name: str
    happen: Callable[[FaultContext, float], None]
    """Breaks something for a number of seconds, and repairs it."""
    touches: Set[str]
    seconds: float = 10.0
    pause: float = MAX_RESTART
    """Seconds in which a line that always has work may get no request, at most."""
    may_repeat: bool = True
    """Whether what was under way may be asked once more."""


BREAKAGES = (
    Breakage("redis-flushed", flush, {REDIS}, pause=SHORT, may_repeat=False),
    Breakage("redis-killed", kill_redis, {REDIS}, seconds=15.0, pause=SHORT, may_repeat=False),
    Breakage("redis-hung", hang_redis, {REDIS}, seconds=25.0, pause=SHORT, may_repeat=False),
    Breakage("redis-away", take_redis_away, {REDIS}, seconds=30.0, pause=SHORT, may_repeat=False),
    Breakage("worker-killed", kill_workers, {WORKERS}, seconds=20.0, pause=UNTIL_TAKEN_OVER),
    Breakage("celery-killed", kill_celery, {WORKERS, BEAT}),
    Breakage("worker-frozen", freeze_a_worker, {WORKERS}, 1.5 * LEASE_SECONDS, pause=UNTIL_TAKEN_OVER + LEASE_SECONDS),
    Breakage("worker-asked-to-stop", stop_a_worker, {WORKERS}, may_repeat=False),
    Breakage("postgresql-restarted", restart_postgres, {POSTGRES}),
    Breakage("postgresql-away-60s", take_postgres_away, {POSTGRES}, 60.0, pause=60.0 + promised_pause(STORES_NOTHING)),
    Breakage("postgresql-sessions-ended", end_sessions, {POSTGRES}, seconds=15.0),
    Breakage("web-killed", kill_web, {WEB}, may_repeat=False),
    Breakage("two-fleets-three-beats", double_everything, {WORKERS, BEAT, REDIS}, may_repeat=False),
    Breakage("admin-edits", other_workloads.edit, {ADMINS}, may_repeat=False),
    Breakage("much-at-once", break_much_at_once, {REDIS, POSTGRES, WEB, WORKERS, BEAT}, pause=2 * MAX_RESTART),
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing to break, for how long, and the seed that decides which process it hits."""

    breakage: Breakage
    seconds: float
    seed: str

    def __str__(self) -> str:
        return f"{self.breakage.name} {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class Step:
    """What is broken at once, and how many seconds after the step before."""

    after: float
    faults: Sequence[Fault]

    def __str__(self) -> str:
        return " with ".join(map(str, self.faults))


def steps(seed: int) -> Iterator[Step]:
    """Yield steps without end; each is decided by the seed and its place alone, however long those before took."""
    return (step(f"{seed}.{place}") for place in itertools.count())


def step(seed: str) -> Step:
    """Return one step: one thing to break, or two that do not touch the same."""
    random = dice(seed)
    first = random.choice(BREAKAGES)
    apart = [other for other in BREAKAGES if not other.touches & first.touches]
    chosen = [first, random.choice(apart)] if apart and random.randrange(TWO_EVERY) == 0 else [first]
    is_long = random.randrange(LONG_EVERY) == 0
    after = random.uniform(*BETWEEN_SECONDS)
    brief = [min(one.seconds, random.uniform(*BRIEF_SECONDS)) for one in chosen]
    seconds = [one.seconds for one in chosen] if is_long else brief
    return Step(
        after, [Fault(*each, f"{seed}.{place}") for place, each in enumerate(zip(chosen, seconds, strict=True))]
    )
