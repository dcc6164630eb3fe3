"""The commands of `./broker`, run in the environment that the bootstrap made."""

import os
import sys
from collections.abc import Callable

from broker_project.stack.application import python
from broker_project.stack.counts import show_counts
from broker_project.stack.demo.demo import demo
from broker_project.stack.test_command import audit, test
from broker_project.stack.trace import trace
from broker_project.stack.up import manage, run_command, up


def bench(*arguments: str) -> int:
    """Replace this process with the benchmarks, which import this package and not vice versa."""
    os.execv(sys.executable, python("benchmarks", *arguments))  # noqa: S606 - no shell


def faults(*arguments: str) -> int:
    """Replace this process with the fault suite."""
    os.execv(sys.executable, python("tests.faults", *arguments))  # noqa: S606 - no shell


COMMANDS: dict[str, Callable[..., int]] = {
    "audit": audit,
    "bench": bench,
    "counts": show_counts,
    "demo": demo,
    "faults": faults,
    "manage": manage,
    "test": test,
    "trace": trace,
    "up": up,
}


if __name__ == "__main__":
    sys.exit(run_command(COMMANDS[sys.argv[1]], *sys.argv[2:]))
