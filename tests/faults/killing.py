"""Workers killed one after the other, whatever they are doing."""

import random
import time
from functools import partial

from broker_project.stack.supervisor import Child
from tests.faults.load import Load
from tests.receiver import wait_until

LONGEST_RESTART = 15.0
"""A worker that comes back takes its lines back, long before their leases run out."""
KILLS = 8
KILL_EVERY = 5.0


def victims(workers: list[Child], kills: int) -> list[Child]:
    """Return whom to kill, at random but each as often: who keeps ending is started after longer and longer."""
    rounds = -(-kills // len(workers))
    return random.sample(workers * rounds, kills)


def wait_until_there(worker: Child) -> None:
    """Wait until a worker that was killed is back."""
    wait_until(partial(getattr, worker, "pid"), LONGEST_RESTART)


def kill_all(load: Load) -> None:
    """Kill every worker at the same time."""
    with load.fault():
        for worker in load.broker.workers():
            worker.kill()


def kill_again_and_again(load: Load, kills: int) -> None:
    """Kill so many workers, one every few seconds."""
    for victim in victims(load.broker.workers(), kills):
        wait_until_there(victim)
        with load.fault():
            victim.kill()
        time.sleep(KILL_EVERY)
