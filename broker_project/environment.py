"""Read environment variables. An invalid value raises `ImproperlyConfigured` with the variable and what to set."""

import contextlib
import re
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import environ
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from broker_project.core.egress import Network, networks_in

env: Any = environ.Env()  # type: ignore[no-untyped-call]

MAX_DAYS = 36_500
"""A hundred years."""
MIN_CHARACTERS, MIN_DIFFERENT = 50, 5
"""Of a secret key; Django's own minimum."""
ORIGIN = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z.-]+)(:[1-9][0-9]{0,4})?")
WEB_ADDRESS = re.compile(ORIGIN.pattern + r"(/[^\s?#]*)?")
HOST_NAME = re.compile(r"\.?[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*|\[[0-9A-Fa-f:.]+\]")
"""As requests name one, without a port; behind a dot, with all below it. No wildcard: links would lead to any host."""
ANYTHING = re.compile(r".*", re.DOTALL)
SPARK_MASTER_URL = re.compile(r"local(-cluster)?(\[([1-9][0-9]*|\*)(,\s*[1-9][0-9]*)*\])?|yarn|(spark|k8s)://\S+")
PASSWORD_IN_URL = re.compile(r"[^/]*://[^/@\[]*:(?![0-9]+(/|$)).*", re.DOTALL)
"""A login with a password: a colon before the path that is not followed by a port."""
WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
"""Fits into a PostgreSQL integer."""
JAVA_MEMORY = re.compile(r"[1-9][0-9]*[mg]")
COLOR = re.compile(r"#[0-9A-Fa-f]{6}")
PERCENT = re.compile(r"[0-9]{1,2}(\.[0-9]{1,6})?")
PATH_OR_URL = re.compile(r"(|/.*|[a-z][a-z0-9]*://\S+)")
YES_OR_NO = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def read_settings() -> None:
    """Read the settings, where Django would put that off, and end the process with one line if something is wrong."""
    try:
        settings.LOGGING  # noqa: B018
    except ImproperlyConfigured as problem:
        sys.exit(f"broker: {problem}")


def text(name: str) -> str:
    """Return a required value."""
    value: str = env.str(name, default="")
    if not value:
        raise ImproperlyConfigured(f"{name} is not set: set it to {HINTS[name]}.")
    return value


def secret(name: str) -> str:
    """Return a required value that is long enough for a secret key. The error does not contain it."""
    value = text(name)
    if len(value) < MIN_CHARACTERS or len(set(value)) < MIN_DIFFERENT:
        raise ImproperlyConfigured(f"{name} is easy to guess: set it to {HINTS[name]}.")
    return value


def one_of(name: str, choices: Sequence[str], default: str) -> str:
    """Return one of `choices`."""
    value: str = env.str(name, default=default)
    if value not in choices:
        raise ImproperlyConfigured(f"{name} is {value!r}: set it to one of {', '.join(choices)}.")
    return value


def number(name: str, *, minimum: int, default: int, maximum: int) -> int:
    """Return a whole number from `minimum` to `maximum`."""
    value: str = env.str(name, default=str(default))
    if not WHOLE_NUMBER.fullmatch(value) or not minimum <= int(value) <= maximum:
        raise ImproperlyConfigured(f"{name} is {value!r}: set it to a whole number from {minimum} to {maximum}.")
    return int(value)


def matching(name: str, pattern: re.Pattern[str], default: str) -> str:
    """Return a value that matches `pattern`."""
    value: str = env.str(name, default="") or default
    if not pattern.fullmatch(value):
        raise ImproperlyConfigured(f"{name} is {value!r}: set it to {HINTS[name]}.")
    return value


def lake(name: str) -> str:
    """Return an absolute path, or a URL without a password, because runs store it. Empty: there is no lake."""
    if PASSWORD_IN_URL.fullmatch(env.str(name, default="")):
        raise ImproperlyConfigured(
            f"{name} is a URL with a password: set it to one without, and pass the password to Spark in another way,"
            " such as AWS_SECRET_ACCESS_KEY."
        )
    return matching(name, PATH_OR_URL, "")


def switch(name: str, *, default: bool = False) -> bool:
    """Return a boolean."""
    value: str = env.str(name, default="") or str(int(default))
    if value.lower() not in YES_OR_NO:
        raise ImproperlyConfigured(f"{name} is {value!r}: set it to 1 or 0.")
    return YES_OR_NO[value.lower()]


def database(name: str) -> dict[str, Any]:
    """Return the Django settings of a PostgreSQL database. Errors do not contain the URL, which can have a password."""
    is_postgresql = text(name).startswith(("postgres://", "postgresql://"))
    try:
        found: dict[str, Any] = env.db_url(name) if is_postgresql else {}
    except ValueError:
        found = {}
    if not found.get("NAME"):
        raise ImproperlyConfigured(f"{name} is not the address of a PostgreSQL database: set it to {HINTS[name]}.")
    return found


def redis_address(name: str) -> str:
    """Return the URL of a Redis. Errors do not contain it, because it can have a password."""
    value = text(name)
    with contextlib.suppress(ValueError):  # of an invalid port
        if value.startswith(("redis://", "rediss://", "unix://")) and urlsplit(value).port != 0:
            return value
    raise ImproperlyConfigured(f"{name} is not the address of a Redis: set it to {HINTS[name]}.")


def web_address(name: str, default: str) -> str:
    """Return an absolute http or https URL without a trailing slash."""
    value: str = env.str(name, default=default).rstrip("/")
    if value and not WEB_ADDRESS.fullmatch(value):
        raise ImproperlyConfigured(f"{name} is {value!r}: set it to {HINTS[name]}.")
    return value


def networks(name: str, default: str) -> tuple[Network, ...]:
    """Return a comma-separated list of networks and addresses."""
    value: str = env.str(name, default=default)
    try:
        return networks_in(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name} is {value!r}: set it to {HINTS[name]}.") from None


def listed(name: str, pattern: re.Pattern[str], default: Sequence[str] = ()) -> list[str]:
    """Return values that are separated by commas, without the blanks around them, each of which matches `pattern`."""
    value = [one.strip() for one in env.list(name, default=[*default])]
    if not all(map(pattern.fullmatch, value)):
        raise ImproperlyConfigured(f"{name} is {','.join(value)!r}: set it to {HINTS[name]}.")
    return value


def hosts_of(address: str) -> list[str]:
    """Return the host of a URL as requests name it; nothing if the URL is empty."""
    host = urlsplit(address).hostname
    return [f"[{host}]" if ":" in host else host] if host else []


HINTS = {
    "BROKER_ALLOWED_NETWORKS": "networks such as 10.20.0.0/16,fd12:3456::/32, without bits behind the prefix",
    "BROKER_ALLOWED_HOSTS": "the host names of the broker, such as broker.example.org, without https:// and port",
    "BROKER_FLOWER_URL": "the URL by which people reach Flower, such as https://flower.example.org",
    "BROKER_LAKE": "an absolute path, or the URL of a folder that Spark can write to",
    "BROKER_OBJECTIVE_PERCENT": "a number below 100, such as 99.9",
    "BROKER_PORTAL_COLOR": "a colour such as #1d4ed8",
    "BROKER_PORTAL_LOGO": "the URL of an image, such as https://www.example.org/logo.svg",
    "BROKER_PORTAL_ORIGINS": "origins such as https://app.example.org,https://admin.example.org, without a path",
    "BROKER_PROXIES": "addresses and networks such as 10.0.0.5,10.1.0.0/16, without bits behind the prefix",
    "BROKER_PUBLIC_URL": "the URL by which endpoints reach the broker, such as https://broker.example.org",
    "BROKER_SPARK_MASTER": "local[1], or the address of a Spark cluster such as spark://host:7077",
    "BROKER_SPARK_MEMORY": "a number and m or g, such as 1g",
    "BROKER_SECRET_KEY": "50 random characters or more (openssl rand -base64 48), the same for every process",
    "DATABASE_URL": "postgres://user:password@host:port/database, with %XX for special characters in the password",
    "REDIS_URL": "redis://:password@host:port/0",
}
"""What to set, by variable."""
