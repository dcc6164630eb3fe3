"""Run a stack: stores, database set-up, application."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_project.stack.application import Application, python
from broker_project.stack.bootstrap import START_HEARTBEAT_SECONDS, heartbeat
from broker_project.stack.folders import PASSWORD_BYTES, ROOT, StackError, StackFolder, StackSettings
from broker_project.stack.ports import LOOPBACK, hold
from broker_project.stack.secret_keys import LAST, store_key
from broker_project.stack.set_up import VALID_LOGIN, WRONG_SETTINGS
from broker_project.stack.stores import Stores, running_stores, silent
from broker_project.stack.supervisor import Service, Supervisor
from broker_project.stack.variables import ADMIN, flower_login, variables

WEB_PORT = 8000
FLOWER_PORT = 5555


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack: its processes, the environment of its programs, and its addresses."""

    supervisor: Supervisor
    environment: Mapping[str, str]
    web: str
    flower: str
    admin_login: str
    """Empty if the login of the first start has been changed."""

    flower_login: str
    logs: Path


@contextlib.contextmanager
def running_stack(
    path: Path,
    *,
    durable: bool = True,
    fresh: bool = False,
    say: Callable[[str], None] = silent,
    services: Callable[[Application], Sequence[Service]] = Application.services,
) -> Iterator[Stack]:
    """Run the stores and `services` in a folder, with empty stores if `fresh`; stop everything at the end."""
    with (
        running_stores(path, durable=durable, fresh=fresh, say=say) as stores,
        held_port(stores.settings, "web", WEB_PORT),
        held_port(stores.settings, "Flower", FLOWER_PORT),
    ):
        yield _start(stores, StackFolder(path).logs, say, services)


def held_port(settings: StackSettings, name: str, preferred: int) -> socket.socket:
    """Choose a port and hold it; choose again if another program takes it in between."""
    while True:
        with contextlib.suppress(OSError):
            return hold(settings.port(name, preferred))


def _start(
    stores: Stores, logs: Path, say: Callable[[str], None], services: Callable[[Application], Sequence[Service]]
) -> Stack:
    """Start the application on running stores."""
    settings = stores.settings
    web_port, flower_port = settings.chosen_port("web"), settings.chosen_port("Flower")
    web, flower = (f"http://{LOOPBACK}:{port}" for port in (web_port, flower_port))
    environment = {"BROKER_FLOWER_URL": flower} | variables(settings, stores.environment, web_port)
    say("updating the database ...")
    password = settings.secret("admin password", PASSWORD_BYTES)
    with heartbeat(say, lambda: "updating the database", START_HEARTBEAT_SECONDS):
        is_valid = _set_up(environment, password)
    admin_login = f"{ADMIN}:{password}" if is_valid else ""
    store_key(settings, LAST)
    login = flower_login(settings)
    installation = settings.secret("installation")[:8]
    application = Application(environment, web_port, flower_port, login, installation)
    allowed = environment["BROKER_ALLOWED_NETWORKS"] or "no private network"
    say(f"endpoints may be on the internet and on {allowed}, according to BROKER_ALLOWED_NETWORKS")
    wanted = services(application)
    say(f"starting {', '.join(service.name for service in wanted)} ...")
    stores.supervisor.start(*wanted)
    return Stack(stores.supervisor, environment, web, flower, admin_login, login, logs)


def _set_up(environment: Mapping[str, str], admin_password: str) -> bool:
    """Set up the database in another process; return whether the admin password is valid."""
    result = subprocess.run(  # noqa: S603 - our own command
        python("broker_project.stack.set_up"),
        cwd=ROOT,
        env={**os.environ, **environment, "ADMIN_PASSWORD": admin_password},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == WRONG_SETTINGS:
        raise StackError(result.stdout.splitlines()[-1])
    if result.returncode:
        raise StackError(f"the database could not be set up:\n{result.stdout}{result.stderr}")
    return result.stdout.rstrip().endswith(VALID_LOGIN)
