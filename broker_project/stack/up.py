"""`./broker up` and `./broker manage`, and how every command ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final

from django.core.exceptions import ImproperlyConfigured

from broker_project.stack.bootstrap import say
from broker_project.stack.folders import ROOT, STATE, AlreadyRunning, StackError, StackFolder, StackSettings, is_locked
from broker_project.stack.ports import LOOPBACK
from broker_project.stack.running_stack import WEB_PORT, Stack, running_stack
from broker_project.stack.secret_keys import check_key
from broker_project.stack.stores import running_stores
from broker_project.stack.variables import variables, variables_of_running

SIGNALLED: Final = 128
"""And the number of the signal: the status of a command that one has ended."""
INTERRUPTED: Final = SIGNALLED + signal.SIGINT


def run_command(command: Callable[..., int], *arguments: str) -> int:
    """Run a command and return its exit status; SIGTERM and SIGHUP end it in order, as Ctrl-C does.

    What was ignored from the start stays so: `nohup` means that the end of the terminal ends nothing.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    for number in _heeded(signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        return command(*arguments)
    except (StackError, ImproperlyConfigured) as failure:
        say(str(failure))
        return 1
    except PermissionError as failure:
        if not (failure.filename and Path(failure.filename).is_relative_to(STATE)):
            raise
        say(f"{failure.filename} belongs to another user: run as that user, or delete {STATE} as that user")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _heeded(*numbers: signal.Signals) -> list[signal.Signals]:
    """Return those of the signals that are not ignored."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def up() -> int:
    """Run the stack, with the data of earlier starts, until a signal."""
    started = time.monotonic()
    try:
        with running_stack(STATE, say=say) as stack:
            say(f"everything is running after {time.monotonic() - started:.1f} s\n{addresses(stack)}")
            say("Ctrl-C stops it")
            wait_for_interrupt()
            say("stopping ...")
    except AlreadyRunning as running:
        say(f"{running}; it listens on {LOOPBACK}:{StackSettings(StackFolder(STATE).settings, say).chosen_port('web')}")
        return 1
    return 0


def wait_for_interrupt() -> None:
    """Wait for Ctrl-C or a request to end."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def addresses(stack: Stack) -> str:
    """Return the public addresses and logins of a stack."""
    public = stack.environment["BROKER_PUBLIC_URL"].rstrip("/")
    behind = "" if public == stack.web else f"  web     {stack.web}   for the proxy in front of it\n"
    site = public or "https://HOST"
    return behind + "\n".join(
        (
            f"  admin   {site}/admin/   {_login(stack.admin_login)}",
            f"  API     {site}/api/docs/",
            f"  Flower  {stack.flower}/   {_login(stack.flower_login)}",
            f"  logs    {stack.logs}/",
        )
    )


def _login(login: str) -> str:
    name, _, password = login.partition(":")
    return f"login {name}, password {password}" if login else "with the login that you created"


def manage(*arguments: str) -> int:
    """Run manage.py with the servers of the running stack; if none is running, with servers of its own."""
    folder = StackFolder(STATE)
    if is_locked(folder.lock):
        return _manage(variables_of_running(folder), *arguments)
    with running_stores(STATE, say=say, check=check_key) as stores:
        return _manage(variables(stores.settings, stores.environment, WEB_PORT), *arguments)


def _manage(environment: dict[str, str], *arguments: str) -> int:
    """Run manage.py to its end, which a signal leaves to it: Ctrl-C has reached it, the others are passed on."""
    command = (sys.executable, str(ROOT / "manage.py"), *arguments)
    running: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for process in running if number != signal.SIGINT else ():
            process.send_signal(number)

    heeded = _heeded(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, pass_on) for number in heeded}
    try:
        running.append(subprocess.Popen(command, env=os.environ | environment))  # noqa: S603 - our own command
        status = running[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else SIGNALLED - status
