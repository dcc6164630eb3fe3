"""The commands of `./broker`, in the environment that the bootstrap has made."""

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

from broker_project.stack.application import python
from broker_project.stack.children import DidNotStart
from broker_project.stack.demo.command import demo
from broker_project.stack.folder_lock import AlreadyRunning
from broker_project.stack.ordinary_user import NoOrdinaryUser
from broker_project.stack.postgres import OtherPassword
from broker_project.stack.postgres_programs import ProgramFailed
from broker_project.stack.stacks import SetUpFailed
from broker_project.stack.testing import test
from broker_project.stack.up import manage, say, up


def bench(*arguments: str) -> int:
    """Become the benchmarks, which know this package and not the other way round."""
    os.execv(sys.executable, python("benchmarks", *arguments))  # noqa: S606 - becoming it, not asking a shell


COMMANDS: dict[str, Callable[..., int]] = {"bench": bench, "demo": demo, "manage": manage, "test": test, "up": up}
EXPLAINED = (AlreadyRunning, DidNotStart, NoOrdinaryUser, OtherPassword, ProgramFailed, SetUpFailed)
"""Failures whose message says it all."""


def end(_signal: int, _frame: FrameType | None) -> None:
    """Leave by the way Ctrl-C goes, so that everything is stopped in order."""
    raise KeyboardInterrupt


def main(command: str, *arguments: str) -> int:
    """Run a command line that the bootstrap has looked through; return its exit status."""
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        return COMMANDS[command](*arguments)
    except EXPLAINED as failure:
        say(str(failure))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
