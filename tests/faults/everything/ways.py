"""Ways to break a broker for some seconds; each mends what it has broken."""

import signal
import time
from contextlib import ExitStack

from broker_project.stack.supervisor import Child
from tests.faults.breaking import away, flush_redis, frozen, restarted, send, terminate_a_backend, terminating
from tests.faults.everything.scenes import Scene
from tests.faults.fleets import more_beats, more_workers
from tests.receiver import wait_until

FLUSH_EVERY = 2.0
KILL_EVERY = 5.0
WEB_KILL_EVERY = 3.0
END_EVERY = 0.5
MOMENT = 0.5


def some_worker(scene: Scene) -> Child:
    """Return one that runs: who keeps ending is started after longer and longer."""
    there: list[Child] = []
    wait_until(lambda: there.extend(worker for worker in scene.broker.workers() if worker.pid) or there)  # type: ignore[func-returns-value]
    return scene.random.choice(there)


def flush(scene: Scene, seconds: float) -> None:
    """Flush Redis every two seconds."""

    def act() -> None:
        with scene.fault():
            flush_redis(scene.broker)

    scene.again_and_again(seconds, FLUSH_EVERY, act)


def kill_redis(scene: Scene, seconds: float) -> None:
    """Kill Redis every five seconds; it is back at once, and empty."""

    def act() -> None:
        with scene.fault(), away(scene.process("redis")):
            time.sleep(MOMENT)

    scene.again_and_again(seconds, KILL_EVERY, act)


def take_redis_away(scene: Scene, seconds: float) -> None:
    with scene.fault(), away(scene.process("redis")):
        time.sleep(seconds)


def hang_redis(scene: Scene, seconds: float) -> None:
    with scene.fault(), frozen(scene.process("redis")):
        time.sleep(seconds)


def kill_workers(scene: Scene, seconds: float) -> None:
    """Kill a worker every five seconds, whichever."""

    def act() -> None:
        victim = some_worker(scene)
        with scene.fault():
            victim.kill()

    scene.again_and_again(seconds, KILL_EVERY, act)


def kill_celery(scene: Scene, _seconds: float) -> None:
    """Kill every worker and beat at once."""
    celery = [*scene.broker.workers(), scene.process("analytics"), scene.process("beat")]
    with restarted(*celery), scene.fault():
        for child in celery:
            child.kill()


def freeze_a_worker(scene: Scene, seconds: float) -> None:
    """Let a worker stand still; what it had under way may be asked again from then on."""
    with frozen(some_worker(scene)):
        with scene.fault():
            pass
        time.sleep(seconds)
    with scene.fault():
        pass  # what it had begun to send or to settle


def stop_a_worker(scene: Scene, _seconds: float) -> None:
    """Ask a worker to stop; it is started again."""
    worker = some_worker(scene)
    with restarted(worker), scene.fault():
        send(signal.SIGTERM, worker)


def restart_postgres(scene: Scene, _seconds: float) -> None:
    postgres = scene.process("postgres")
    with scene.fault(), restarted(postgres):
        send(signal.SIGQUIT, postgres)


def take_postgres_away(scene: Scene, seconds: float) -> None:
    with scene.fault(), away(scene.process("postgres")):
        time.sleep(seconds)


def end_sessions(scene: Scene, seconds: float) -> None:
    """End a database session every half second, whichever."""
    with terminating(scene.broker) as connection:

        def act() -> None:
            with scene.fault():
                terminate_a_backend(connection)

        scene.again_and_again(seconds, END_EVERY, act)


def kill_web(scene: Scene, seconds: float) -> None:
    """Kill the web process every three seconds."""

    def act() -> None:
        with scene.fault(of_web=True), away(scene.process("web")):
            pass

    scene.again_and_again(seconds, WEB_KILL_EVERY, act)


def double_everything(scene: Scene, seconds: float) -> None:
    """Run a second fleet of workers, and two beats more."""
    with more_workers(scene.broker), more_beats(scene.broker, 2):
        time.sleep(seconds)


def break_much_at_once(scene: Scene, seconds: float) -> None:
    """Hang Redis, and while it hangs kill a worker, restart PostgreSQL, kill the web process and then all of Celery."""
    redis, postgres, web = (scene.process(name) for name in ("redis", "postgres", "web"))
    with scene.fault(of_web=True), frozen(redis), ExitStack() as all_at_once:
        some_worker(scene).kill()
        all_at_once.enter_context(away(web))
        all_at_once.enter_context(away(postgres))
        time.sleep(seconds)
    kill_celery(scene, 0)
