"""What a stack chooses once and keeps: its ports and its secrets, in a file of its owner."""

import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from broker_project.stack.ports import any_free, free_from, is_free

SECRET_BYTES = 48
"""As text 64 characters: Django asks for 50 in a secret key."""
PASSWORD_BYTES = 12


class Kept:
    """The file's content; written at once whenever something is chosen.

    Raises:
        ImproperlyConfigured: somebody has made something else of it; also where something is kept.

    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._values: dict[str, str] = {}
        self._read()

    @property
    def folder(self) -> Path:
        """Where the file is, and whatever else the stack keeps."""
        return self._path.parent

    def secret(self, name: str) -> str:
        """Return a random secret."""
        return self._values.get(name) or self._keep(name, secrets.token_urlsafe(SECRET_BYTES))

    def password(self, name: str) -> str:
        """Return a random secret that people can type."""
        return self._values.get(name) or self._keep(name, secrets.token_urlsafe(PASSWORD_BYTES))

    def note(self, name: str, value: str) -> None:
        """Keep what somebody else has chosen."""
        self._keep(name, value)

    def noted(self, name: str) -> str:
        """Return what is kept under this name, nothing if nothing is."""
        return self._values.get(name, "")

    def port(self, name: str, preferred: int | None = None) -> int:
        """Return the port kept under this name; another if somebody else has taken it meanwhile."""
        wanted = int(self._values.get(name, preferred or 0))
        if wanted and is_free(wanted):
            return int(self._keep(name, str(wanted)))
        port = free_from(wanted + 1) if preferred else any_free()
        if preferred:
            self._say(f"port {wanted} for {name} is taken by another program: using {port}")
        return int(self._keep(name, str(port)))

    def kept_port(self, name: str) -> int:
        """Return the port of a stack that is running."""
        return int(self._values[name])

    def _read(self) -> None:
        if self._path.exists():
            try:
                self._values = dict(_texts(json.loads(self._path.read_text())))
            except (ValueError, AttributeError) as problem:
                raise ImproperlyConfigured(
                    f"{self._path} holds the stack's secrets and is no JSON object of texts and numbers ({problem}): "
                    "mend it, or put it back"
                ) from problem

    def _keep(self, name: str, value: str) -> str:
        self._read()  # another object may have kept something meanwhile
        if self._values.get(name) != value:
            self._values[name] = value
            new = self._path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(json.dumps(self._values, indent=1))
            new.replace(self._path)
        return value


def _texts(values: Any) -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if type(value) not in (str, int):
            raise ValueError(f"{name!r} is neither text nor number")
        yield name, str(value)
