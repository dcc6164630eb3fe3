"""The commands of `./broker`, in the environment that the bootstrap has made."""

import os
import sys
from collections.abc import Callable

from broker_project.stack.command_line import run
from broker_project.stack.counts import show_counts
from broker_project.stack.demo.demo import demo
from broker_project.stack.services import python
from broker_project.stack.test_command import audit, test
from broker_project.stack.trace import trace
from broker_project.stack.up import manage, up


def bench(*arguments: str) -> int:
    """Become the benchmarks: they know this package, it does not know them."""
    os.execv(sys.executable, python("benchmarks", *arguments))  # noqa: S606 - becoming it, not asking a shell


def faults(*arguments: str) -> int:
    """Become the fault suite: likewise."""
    os.execv(sys.executable, python("tests.faults", *arguments))  # noqa: S606 - becoming it, not asking a shell


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
    sys.exit(run(COMMANDS[sys.argv[1]], *sys.argv[2:]))
