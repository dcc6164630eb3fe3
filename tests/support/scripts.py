"""Running scripts in processes of their own, as an event loop does."""

import contextlib
import select
from collections.abc import Iterator
from typing import Any

from subscriptions.scripting.jobs import Job, Result
from subscriptions.scripting.runner import ScriptRunner

ISSUE_JOB = Job(
    "",
    body=b'{"project": {"id": "proj1008"}, "n": [1, 2]}',
    is_json=True,
    headers={"filter_string": ["proj1008"], "x-tag": ["a", "b"]},
    now_ms=1_700_000_000_123,
    seed=5,
)
NO_ASYNC = "async functions are not available: a script runs once, without waiting"


@contextlib.contextmanager
def running_scripts(processes: int = 1) -> Iterator[ScriptRunner]:
    runner = ScriptRunner(processes)
    try:
        yield runner
    finally:
        runner.close()


def wait_for_results(runner: ScriptRunner, count: int) -> dict[Any, Result]:
    """Wait for `count` results."""
    poll = select.poll()
    poll.register(runner.fileno(), select.POLLIN)
    done: dict[Any, Result] = {}
    while len(done) < count:
        poll.poll((runner.patience() or 0.0) * 1000)
        done |= dict(runner.finished())
    return done


def run_script(runner: ScriptRunner, source: str, **given: Any) -> Result:
    fields = {name: getattr(ISSUE_JOB, name) for name in Job.__slots__} | {"source": source} | given
    runner.run("it", Job(**fields))
    return wait_for_results(runner, 1)["it"]


def process_ids(runner: ScriptRunner) -> list[int]:
    return [process.pid for process in runner.processes.values()]
