"""The commands of `./broker`, run in the environment that the bootstrap made."""

import os
import sys
from collections.abc import Callable
from functools import partial

from broker_project.stack.application import python
from broker_project.stack.counts import show_counts
from broker_project.stack.demo.demo import demo
from broker_project.stack.model import check_model
from broker_project.stack.test_command import audit, test
from broker_project.stack.trace import trace
from broker_project.stack.up import manage, run_command, up


def replace_process(module: str, *arguments: str) -> int:
    """Replace this process with a program that imports this package, and not vice versa."""
    os.execv(sys.executable, python(module, *arguments))  # noqa: S606 - no shell


COMMANDS: dict[str, Callable[..., int]] = {
    "audit": audit,
    "bench": partial(replace_process, "benchmarks"),
    "counts": show_counts,
    "demo": demo,
    "faults": partial(replace_process, "tests.faults"),
    "histories": partial(replace_process, "tests.histories"),
    "manage": manage,
    "model": check_model,
    "screenshots": partial(replace_process, "tests.screenshots"),
    "sizing": partial(replace_process, "benchmarks.sizing"),
    "test": test,
    "trace": trace,
    "up": up,
}


if __name__ == "__main__":
    sys.exit(run_command(COMMANDS[sys.argv[1]], *sys.argv[2:]))
