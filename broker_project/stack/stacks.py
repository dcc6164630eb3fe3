"""Run a stack: stores, database set-up, application."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_project.environment import switch
from broker_project.stack.folders import ROOT, StackFolder, StackSettings
from broker_project.stack.ports import LOOPBACK, LOOPBACK_NETWORKS, hold
from broker_project.stack.secret_keys import LAST, RUNNING, check_start_key, secret_key, store_key
from broker_project.stack.servers import Servers, servers_of, silent, supervised
from broker_project.stack.services import Application, Service, python
from broker_project.stack.set_up import ADMIN, VALID_LOGIN, WRONG_SETTINGS
from broker_project.stack.supervisor import Supervisor

DEVELOPMENT = "BROKER_DEVELOPMENT"
WEB_PORT = 8000
FLOWER_PORT = 5555


class SetUpFailed(Exception):
    """The database could not be set up; the message has the output."""


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


def variables(kept: StackSettings, stores: Mapping[str, str], web_port: int) -> dict[str, str]:
    """Return the environment of an embedded stack; variables of the user take precedence.

    Raises:
        ImproperlyConfigured: `BROKER_DEVELOPMENT` is not a boolean.

    """
    in_development = switch(DEVELOPMENT, default=DEVELOPMENT not in os.environ)
    defaults = {
        "BROKER_SECRET_KEY": secret_key(kept),
        "BROKER_ALLOWED_HOSTS": f"{LOOPBACK},localhost",
        "BROKER_PUBLIC_URL": f"http://{LOOPBACK}:{web_port}" if in_development else "",
        DEVELOPMENT: "1",
        "BROKER_ALLOWED_NETWORKS": LOOPBACK_NETWORKS,
        "BROKER_LAKE": str(kept.folder / "lake"),
        "BROKER_LOG_FORMAT": "console",
        "DJANGO_SETTINGS_MODULE": "broker_project.settings",
        **stores,
    }
    names = ("DATABASE_URL", "REDIS_URL", *defaults)
    return defaults | {name: os.environ[name] for name in names if name in os.environ}


@contextlib.contextmanager
def running(
    path: Path,
    *,
    durable: bool = True,
    fresh: bool = False,
    say: Callable[[str], None] = silent,
    services: Callable[[Application], Sequence[Service]] = Application.services,
) -> Iterator[Stack]:
    """Run the stores and `services` in a folder, with empty stores if `fresh`; stop everything at the end."""
    folder = StackFolder(path)
    with supervised(folder, say) as supervisor:
        kept = StackSettings(folder.settings, say)
        if fresh:
            folder.forget_stores()
        else:
            check_start_key(kept)
        store_key(kept, RUNNING)
        servers = servers_of(folder, kept, durable=durable, port=kept.port)
        say(f"starting {' and '.join(service.name for service in servers.embedded) or 'with your own servers'} ...")
        supervisor.start(*servers.embedded)
        with hold(kept.port("web", WEB_PORT)):
            yield _start(supervisor, folder, kept, servers, say, services)


def _start(
    supervisor: Supervisor,
    folder: StackFolder,
    kept: StackSettings,
    servers: Servers,
    say: Callable[[str], None],
    services: Callable[[Application], Sequence[Service]],
) -> Stack:
    """Start the application on running stores."""
    web_port = kept.chosen_port("web")
    environment = variables(kept, servers.environment, web_port)
    say("updating the database ...")
    password = kept.password("admin password")
    admin_login = f"{ADMIN}:{password}" if _set_up(environment, password) else ""
    store_key(kept, LAST)
    flower_login = f"{ADMIN}:{kept.password('Flower password')}"
    installation = kept.secret("installation")[:8]
    flower_port = kept.port("Flower", FLOWER_PORT)  # as late as possible: the port is not held until Flower listens
    application = Application(environment, web_port, flower_port, flower_login, installation)
    allowed = environment["BROKER_ALLOWED_NETWORKS"] or "no private network"
    say(f"endpoints may be on the internet and on {allowed}, according to BROKER_ALLOWED_NETWORKS")
    wanted = services(application)
    say(f"starting {', '.join(service.name for service in wanted)} ...")
    supervisor.start(*wanted)
    web, flower = (f"http://{LOOPBACK}:{port}" for port in (web_port, flower_port))
    return Stack(supervisor, environment, web, flower, admin_login, flower_login, folder.logs)


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
        raise SetUpFailed(result.stdout.splitlines()[-1])
    if result.returncode:
        raise SetUpFailed(f"the database could not be set up:\n{result.stdout}{result.stderr}")
    return result.stdout.rstrip().endswith(VALID_LOGIN)
