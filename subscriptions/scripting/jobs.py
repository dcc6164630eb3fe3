"""What a process is asked to do with a script, and what comes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Job:
    """A script, and the message it is run for."""

    source: str
    owner: int = 0
    """Whose script it is: those of one owner are as quick or slow as its last ones."""
    body: bytes = b""
    is_json: bool = False
    headers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    now_ms: int = 0
    """The time inside, in milliseconds since 1970."""
    seed: int = 0
    """Of the randomness inside, 32 bits."""
    only_check: bool = False
    """Compile it and no more."""

    def head(self, cpu_seconds: float) -> dict[str, object]:
        """Return all but the body, and how much CPU it may use, as JSON takes it."""
        return {
            "cpu_seconds": cpu_seconds,
            "source": self.source,
            "is_json": self.is_json,
            "headers": self.headers,
            "now": self.now_ms,
            "seed": self.seed,
            "only_check": self.only_check,
        }


@dataclass(frozen=True, slots=True)
class Made:
    """What a script made of its message."""

    body: bytes | None = None
    """None: the message's own."""
    headers: Mapping[str, str] = field(default_factory=dict)
    param: str = ""
    status: str = "200"
    """Of a call's answer, as the script wrote it; a script can write anything."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It threw, broke a limit or is no JavaScript: it would do so again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Its process took too long or is gone: another time it may do better."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """No process was free for too long; nothing has happened."""


Result = Made | Failed | Lost | NotRun


def result_of(head: Mapping[str, Any], body: bytes) -> Result:
    """Return the result that a process answers."""
    if "failed" in head:
        return Failed(head["failed"])
    return Made(
        body=body if head.get("has_body") else None,
        headers=head.get("headers", {}),
        param=head.get("param", ""),
        status=head.get("status", "200"),
    )
