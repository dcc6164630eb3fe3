"""What publishers and receivers write down, one JSON object a line; all that the verdict knows."""

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SERVICE_UNAVAILABLE = 503
"""Holds the line; every other 5xx sets the delivery aside."""


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


def is_final(answer: int) -> bool:
    """Say whether an answer ends a delivery."""
    return 200 <= answer < 500  # noqa: PLR2004 - 2xx, 3xx, 4xx


def is_accepted(answer: int) -> bool:
    """Say whether an answer takes what was sent."""
    return answer // 100 == 2  # noqa: PLR2004 - 2xx


def sets_aside(answer: int) -> bool:
    """Say whether an answer lets the next message go first."""
    return not is_final(answer) and answer != SERVICE_UNAVAILABLE


def repeated(requests: Iterable[Request]) -> int:
    """Count the requests for events that had been answered for good."""
    ended: set[int] = set()
    count = 0
    for request in requests:
        count += request.number in ended
        if is_final(request.answer):
            ended.add(request.number)
    return count


def unflagged(requests: Iterable[Request]) -> int:
    """Count the requests for events that somebody had taken, where they do not say that they may be repeated."""
    taken: set[int] = set()
    count = 0
    for request in requests:
        count += request.number in taken and not request.possible_duplicate
        if is_accepted(request.answer):
            taken.add(request.number)
    return count


def inverted(arrivals: Iterable[Published]) -> int:
    """Count the events that arrived after one published entirely later; overlapping calls have no order."""
    latest_start = float("-inf")
    positions: dict[float, int] = {}
    late: set[int] = set()
    for event in arrivals:
        latest_position = positions.get(event.started, 0)
        if event.ended < latest_start or event.position < latest_position:
            late.add(event.number)
        latest_start = max(latest_start, event.started)
        positions[event.started] = max(latest_position, event.position)
    return len(late)
