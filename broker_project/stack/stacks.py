"""A whole stack for as long as somebody wants it: stores, database set-up, application."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from broker_project.environment import switch
from broker_project.stack.folders import ROOT, Kept, StackFolder
from broker_project.stack.ports import LOOPBACK, LOOPBACK_NETWORKS, hold
from broker_project.stack.secret_keys import hold_against_last_start, note_sealing, note_start, secret_key
from broker_project.stack.servers import Servers, servers_of, silent, supervised
from broker_project.stack.services import Application, Service, python
from broker_project.stack.set_up import ADMIN, GOOD_LOGIN, WRONG_SETTINGS
from broker_project.stack.supervisor import Supervisor

DEVELOPMENT = "BROKER_DEVELOPMENT"
WEB_PORT = 8000
FLOWER_PORT = 5555


class SetUpFailed(Exception):
    """Migrations or what follows them went wrong; the message has what they printed."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A running stack: its processes by name, the variables its programs need, and its addresses."""

    supervisor: Supervisor
    environment: Mapping[str, str]
    web: str
    flower: str
    admin_login: str
    """Empty when it is no longer the one that was made at the first start."""

    flower_login: str
    logs: Path


def variables(kept: Kept, stores: Mapping[str, str], web_port: int) -> dict[str, str]:
    """Return the settings of the embedded stack; those in the user's environment win.

    Raises:
        ImproperlyConfigured: `BROKER_DEVELOPMENT` is neither on nor off.

    """
    in_development = switch(DEVELOPMENT, default=DEVELOPMENT not in os.environ)
    ours = {
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
    return ours | {name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL", *ours) if name in os.environ}


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
        kept = Kept(folder.settings, say)
        if fresh:
            folder.forget_stores()
        else:
            hold_against_last_start(kept)
        note_start(kept)
        servers = servers_of(folder, kept, durable=durable, port=kept.port)
        say(f"starting {' and '.join(service.name for service in servers.embedded) or 'beside your own servers'} ...")
        supervisor.start(*servers.embedded)
        with hold(kept.port("web", WEB_PORT)):
            yield _start(supervisor, folder, kept, servers, say, services)


def _start(
    supervisor: Supervisor,
    folder: StackFolder,
    kept: Kept,
    servers: Servers,
    say: Callable[[str], None],
    services: Callable[[Application], Sequence[Service]],
) -> Stack:
    """Start the application on stores that are running."""
    web_port = kept.kept_port("web")
    environment = variables(kept, servers.environment, web_port)
    say("bringing the database up to date ...")
    password = kept.password("admin password")
    admin_login = f"{ADMIN}:{password}" if _set_up(environment, password) else ""
    note_sealing(kept)
    flower_login = f"{ADMIN}:{kept.password('Flower password')}"
    installation = kept.secret("installation")[:8]
    flower_port = kept.port("Flower", FLOWER_PORT)  # late: nobody can hold it until Flower listens
    application = Application(environment, web_port, flower_port, flower_login, installation)
    allowed = environment["BROKER_ALLOWED_NETWORKS"] or "no private network"
    say(f"endpoints may be on the internet and on {allowed}, as BROKER_ALLOWED_NETWORKS says")
    wanted = services(application)
    say(f"starting {', '.join(service.name for service in wanted)} ...")
    supervisor.start(*wanted)
    web, flower = (f"http://{LOOPBACK}:{port}" for port in (web_port, flower_port))
    return Stack(supervisor, environment, web, flower, admin_login, flower_login, folder.logs)


def _set_up(environment: Mapping[str, str], admin_password: str) -> bool:
    """Run the database set-up in a process of its own; say whether the admin password is good."""
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
    return result.stdout.rstrip().endswith(GOOD_LOGIN)
