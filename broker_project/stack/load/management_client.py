"""A client of the management API of a running stack."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import requests

from broker_project.stack.application import python
from broker_project.stack.folders import ROOT
from broker_project.stack.running_stack import Stack

TIMEOUT_SECONDS: Final = 20.0


class ManagementRefused(requests.RequestException):
    """The broker refused a request; the message has its answer."""


@dataclass(frozen=True, slots=True)
class Management:
    """The management API under one key."""

    web: str
    token: str
    suffix: str = ""
    """Appended to the demo's names, to keep several runs on one database apart."""

    @classmethod
    def of(cls, stack: Stack, suffix: str = "") -> "Management":
        """Create a key with all scopes on a running stack."""
        created = subprocess.run(  # noqa: S603 - our own command
            python("django", "create_api_key", "--scope", "all", "--label", "load"),
            cwd=ROOT,
            env={**os.environ, **stack.environment},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return cls(stack.web, created.stdout.strip(), suffix)

    def create(self, collection: str, /, **fields: object) -> dict[str, Any]:
        """Create one object and return it."""
        return dict(self.send("POST", collection, fields))

    def key(self, kind: str, owner: str) -> str:
        """Create an API key of a publisher or a subscriber, `PUBLISHER` or `SUBSCRIBER`; return its token."""
        created = self.create("api-keys", kind=kind, label="load", **{kind.lower(): owner})
        return str(created["token"])

    def change(self, path: str, **fields: object) -> None:
        """Change an object of any version."""
        self.send("PATCH", path, fields)

    def get(self, path: str, **query: str) -> Any:
        """Return what is stored under a path."""
        return self.send("GET", path, query=query)

    def every(self, collection: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page after page."""
        page = self.get(collection, limit="200", **query)
        yield from page["items"]
        while page["next"]:
            page = self.get(page["next"].partition("/api/v1/")[2])
            yield from page["items"]

    def send(
        self, method: str, path: str, fields: dict[str, object] | None = None, *, query: dict[str, str] | None = None
    ) -> Any:
        """Send a request; return the JSON of its answer, if any; raise `ManagementRefused` if that is not 2xx."""
        answer = requests.request(
            method,
            f"{self.web}/api/v1/{path}",
            params=query,
            json=fields or None,
            headers={"Authorization": f"Bearer {self.token}", "If-Match": "*"},
            timeout=TIMEOUT_SECONDS,
        )
        if not answer.ok:
            raise ManagementRefused(f"{method} {path} answered {answer.status_code}: {answer.text}", response=answer)
        return answer.json() if answer.content else None


def session_of(token: str) -> requests.Session:
    """Return a session that sends this API key."""
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {token}"
    return session
