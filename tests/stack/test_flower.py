"""Flower's own process: what it forgets must leave its memory."""

import subprocess
import sys

from broker_project.stack.services import FLOWER_CONFIG

REMEMBERED = 200
TASKS = 12_000
STORY = f"""
import time, uuid
from celery.events.state import State
from tornado.options import OptionParser

OptionParser().parse_config_file({str(FLOWER_CONFIG)!r})
state, clock = State(max_tasks_in_memory={REMEMBERED}), 0


def tell(kind, task, **fields):
    global clock
    clock, now = clock + 1, time.time()
    state.event(dict(type=kind, uuid=task, clock=clock, hostname="w", timestamp=now, local_received=now, **fields))


most = 0
for _ in range({TASKS}):
    task = str(uuid.uuid4())
    tell("task-received", task, name="delivery.turn", root_id=task, parent_id=None)
    tell("task-succeeded", task, result="None", runtime=0.1)
    most = max(most, len(state.tasks_by_type["delivery.turn"]))
print(most)
"""


def test_tasks_that_flower_forgets_leave_its_memory() -> None:
    told = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, check=True)
    assert REMEMBERED <= int(told.stdout) < TASKS / 6
