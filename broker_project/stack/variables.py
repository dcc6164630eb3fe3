"""The environment variables of an embedded stack, also for processes that are started by hand beside it."""

import os
from collections.abc import Mapping
from typing import Final

from django.core.exceptions import ImproperlyConfigured

from broker_project.environment import HINTS, switch
from broker_project.stack.folders import PASSWORD_BYTES, STATE, StackError, StackFolder, StackSettings, is_locked
from broker_project.stack.ports import LOOPBACK, LOOPBACK_NETWORKS
from broker_project.stack.secret_keys import RUNNING, check_key, secret_key
from broker_project.stack.stores import embedded_stores, silent

ADMIN: Final = "admin"
"""The name of the first logins, of the admin site and of Flower."""
DEVELOPMENT: Final = "BROKER_DEVELOPMENT"
FLOWER_LOGIN: Final = "FLOWER_BASIC_AUTH"
REQUIRED: Final = ("BROKER_SECRET_KEY", "DATABASE_URL", "REDIS_URL")


def variables(settings: StackSettings, stores: Mapping[str, str], web_port: int) -> dict[str, str]:
    """Return the environment of an embedded stack; variables of the user take precedence."""
    in_development = switch(DEVELOPMENT, default=DEVELOPMENT not in os.environ)
    defaults = {
        "BROKER_SECRET_KEY": secret_key(settings),
        "BROKER_ALLOWED_HOSTS": f"{LOOPBACK},localhost",
        "BROKER_PUBLIC_URL": f"http://{LOOPBACK}:{web_port}" if in_development else "",
        DEVELOPMENT: "1",
        "BROKER_ALLOWED_NETWORKS": LOOPBACK_NETWORKS,
        "BROKER_LAKE": str(settings.folder / "lake"),
        "BROKER_LOG_FORMAT": "console",
        "DJANGO_SETTINGS_MODULE": "broker_project.settings",
        **stores,
    }
    names = ("DATABASE_URL", "REDIS_URL", *defaults)
    return defaults | {name: os.environ[name] for name in names if name in os.environ}


def variables_of_running(folder: StackFolder) -> dict[str, str]:
    """Return the environment of a stack that is running; raise `WrongSecretKey` if the user has set another key."""
    settings = StackSettings(folder.settings, silent)
    check_key(settings, RUNNING)
    stores, _ = embedded_stores(folder, settings, settings.chosen_port)
    return {FLOWER_LOGIN: flower_login(settings)} | variables(settings, stores, settings.chosen_port("web"))


def forget_variables() -> None:
    """Delete the user's variables from the environment: a stack then has servers of its own and default settings."""
    for name in [name for name in os.environ if name.startswith("BROKER_") or name in REQUIRED]:
        del os.environ[name]


def flower_login(settings: StackSettings) -> str:
    """Return the login (`name:password`) of the stack's Flower."""
    return f"{ADMIN}:{settings.secret('Flower password', PASSWORD_BYTES)}"


def set_development_defaults() -> None:
    """Set the variables that are missing as the running `./broker up` has them.

    Only with `BROKER_DEVELOPMENT=1`, or if neither that nor any required variable is set: so nothing in production
    starts with values that it was not given. Raises `ImproperlyConfigured` if no `./broker up` is running.
    """
    missing = [name for name in REQUIRED if not os.environ.get(name)]
    if not missing or not switch(DEVELOPMENT, default=len(missing) == len(REQUIRED)):
        return
    folder = StackFolder(STATE)
    if not is_locked(folder.lock):
        hint = HINTS[missing[0]]
        raise ImproperlyConfigured(f"{missing[0]} is not set: start ./broker up to use its own, or set it to {hint}.")
    try:
        for name, value in variables_of_running(folder).items():
            os.environ.setdefault(name, value)
    except StackError as failure:
        raise ImproperlyConfigured(str(failure)) from None
