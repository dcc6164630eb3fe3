"""`./broker up`: the whole stack, with what it has stored before, until Ctrl-C; and `./broker manage` beside it."""

import contextlib
import os
import signal
import subprocess
import sys
import time

from broker_project.stack import servers, stacks
from broker_project.stack.folders import ROOT, STATE, AlreadyRunning, Kept, StackFolder, is_locked
from broker_project.stack.ports import LOOPBACK
from broker_project.stack.secret_keys import hold_against_running, hold_against_stopped


def say(text: str) -> None:
    """Tell the user what is going on."""
    print(f"broker: {text}", file=sys.stderr, flush=True)


def up() -> int:
    """Run the stack until a signal."""
    started = time.monotonic()
    try:
        with stacks.running(STATE, say=say) as stack:
            say(f"everything is running after {time.monotonic() - started:.1f} s\n{addresses(stack)}")
            say("Ctrl-C stops it")
            until_interrupted()
            say("stopping ...")
    except AlreadyRunning as running:
        say(f"{running}; it listens on {LOOPBACK}:{Kept(StackFolder(STATE).settings, say).kept_port('web')}")
        return 1
    return 0


def until_interrupted() -> None:
    """Wait for Ctrl-C or for being asked to end."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


def addresses(stack: stacks.Stack) -> str:
    """Return where to look, and how to get in, at the address that others use too."""
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
    return f"login {name}, password {password}" if login else "with the login you have made"


def manage(*arguments: str) -> int:
    """Run manage.py with the servers of the running stack, or with embedded ones for as long as it takes."""
    folder = StackFolder(STATE)
    if is_locked(folder.lock):
        kept = Kept(folder.settings, say)
        hold_against_running(kept)
        stores = servers.servers_of(folder, kept, durable=True, port=kept.kept_port).environment
        return _manage(stacks.variables(kept, stores, kept.kept_port("web")), *arguments)
    with servers.running(STATE, say=say) as stores:
        kept = Kept(folder.settings, say)
        hold_against_stopped(kept)
        return _manage(stacks.variables(kept, stores, stacks.WEB_PORT), *arguments)


def _manage(environment: dict[str, str], *arguments: str) -> int:
    command = (sys.executable, str(ROOT / "manage.py"), *arguments)
    return subprocess.run(command, env=os.environ | environment, check=False).returncode  # noqa: S603 - our own
