"""What publishers and receivers write down, one JSON object a line; all that the verdict knows."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Published:
    """One event that the broker has accepted."""

    number: int
    type: str
    region: str
    fingerprint: str
    started: float
    """When the call began and ended, on the machine's monotonic clock."""

    ended: float
    position: int
    """Its place within the call, for a batch."""

    deliveries: int
    """How many the broker announced in its answer."""

    message: int = 0
    """The id that the broker gave it."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that a receiver got, and its answer."""

    subscriber: str
    path: str
    webhook_id: str
    sequence: str
    attempt: str
    possible_duplicate: str
    signed: bool
    number: int
    fingerprint: str
    at: float
    """When it had been read, on the machine's monotonic clock."""

    answer: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One SYNC call."""

    number: int
    seconds: float
    """From the call to its answer."""

    status: int
    is_right: bool
    """Whether the answer is the endpoint's own."""


def line(record: Published | Request | Answered) -> str:
    """Return a record as a line of a log."""
    return json.dumps(dataclasses.asdict(record)) + "\n"


def published_in(paths: Iterable[Path]) -> list[Published]:
    """Read the publishers' logs."""
    return [Published(**fields) for path in paths for fields in _objects(path)]


def requests_in(path: Path) -> list[Request]:
    """Read a receiver's log."""
    return [Request(**fields) for fields in _objects(path)]


def answered_in(path: Path) -> list[Answered]:
    """Read the log of who asks."""
    return [Answered(**fields) for fields in _objects(path)]


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        complete, _, _unfinished = path.read_text().rpartition("\n")
        yield from map(json.loads, filter(None, complete.split("\n")))
