"""How every command ends: in order when it is asked to, and in one line when the reason says it all."""

import signal
from collections.abc import Callable
from types import FrameType

from django.core.exceptions import ImproperlyConfigured

from broker_project.stack.folders import AlreadyRunning
from broker_project.stack.postgres import NoOrdinaryUser, OtherPassword, ProgramFailed
from broker_project.stack.secret_keys import OtherSecretKey
from broker_project.stack.stacks import SetUpFailed
from broker_project.stack.supervisor import DidNotStart
from broker_project.stack.up import say

EXPLAINED = (
    AlreadyRunning,
    DidNotStart,
    ImproperlyConfigured,
    NoOrdinaryUser,
    OtherPassword,
    OtherSecretKey,
    ProgramFailed,
    SetUpFailed,
)
"""Failures whose message says it all."""

INTERRUPTED = 130


def run(command: Callable[..., int], *arguments: str) -> int:
    """Run a command and return its exit status."""
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        return command(*arguments)
    except EXPLAINED as failure:
        say(str(failure))
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def end(_signal: int, _frame: FrameType | None) -> None:
    """Leave by the way Ctrl-C goes, so that everything is stopped in order."""
    raise KeyboardInterrupt
