"""What publishers and endpoints record, how it is written to logs, and what two such records say together."""

import base64
import dataclasses
import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self

import requests

from broker_project.stack.load.receiver import Received

NO_NUMBER: Final = 0
"""The number of a body that cannot be read. Events are numbered from 1."""


@dataclass(frozen=True, slots=True)
class Published:
    """One event that the broker has accepted."""

    number: int
    type: str
    started: float
    """When the call that published it started and ended, on the monotonic clock."""
    ended: float
    position: int = 0
    """Its place in a batch."""
    region: str = ""
    """Its filter string."""
    deliveries: int = 0
    """Deliveries that the broker announced in its answer."""
    message_id: int = 0


@dataclass(slots=True)
class Exchange:
    """One request as an endpoint or a mailbox client got it, and its answer."""

    number: int
    """Of the event in its body."""
    webhook_id: str
    sequence: int
    flagged: bool
    """Whether it said that it may be a duplicate."""
    altered: bool
    """Whether its body is not what was published, or its signature is wrong."""
    at: float
    """When it had been read, on the monotonic clock."""
    status: int | None = None
    """None: not answered."""
    answered_at: float | None = None
    hung_up: bool = False
    """Whether the client was gone before the answer."""
    message_id: int = 0
    attempt: int = 1
    """Which attempt of its delivery, as far as the broker knew."""
    endpoint: str = ""
    """The name of the receiver."""
    is_stored: bool = False
    """Whether the broker's tables are known to have its answer."""

    @classmethod
    def of(cls, request: Received, endpoint: str, *, altered: bool) -> Self:
        """Return the record of a request that has no answer yet."""
        sequence = request.headers.get("webhook-sequence", "")
        return cls(
            number=number_in(request.body),
            webhook_id=request.headers.get("webhook-id", ""),
            sequence=int(sequence) if sequence.isdecimal() else NO_NUMBER,
            flagged=request.is_flagged,
            altered=altered,
            at=request.begun,
            message_id=int(request.headers.get("broker-message-id", "0")),
            attempt=int(request.headers.get("webhook-attempt", "1")),
            endpoint=endpoint,
        )


@dataclass(slots=True)
class Call:
    """One call to the broker, on the monotonic clock."""

    begun: float
    number: int = NO_NUMBER
    ended: float = float("inf")
    status: int | None = None
    """None: no answer."""
    body: bytes = b""
    message_id: str = ""
    """Under which a SYNC call was recorded, as the answer says; empty: it was not."""

    @property
    def seconds(self) -> float:
        """How long the answer took."""
        return self.ended - self.begun


def write_log(path: Path, records: Iterable[Any]) -> None:
    """Append records, which are dataclasses, to a log: one JSON object a line."""
    with path.open("a") as log:
        log.writelines(json.dumps(dataclasses.asdict(record)) + "\n" for record in records)


def read_log(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the fields of the records in a log that may not exist yet, without an unfinished last line."""
    if path.exists():
        complete, _, _unfinished = path.read_text().rpartition("\n")
        yield from map(json.loads, filter(None, complete.split("\n")))


def number_in(body: bytes) -> int:
    """Return the number of the event with this body, `NO_NUMBER` if it has none."""
    try:
        number = json.loads(body)["number"]
    except (ValueError, TypeError, KeyError):
        return NO_NUMBER
    return number if isinstance(number, int) else NO_NUMBER


def is_signed(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Return whether one of the signatures in the headers, which have lower-case names, fits the body."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}.".encode() + body
    expected = "v1," + base64.b64encode(hmac.digest(key, content, hashlib.sha256)).decode()
    return any(hmac.compare_digest(expected, given) for given in headers.get("webhook-signature", "").split())


def is_accepted(status: int | None) -> bool:
    """Return whether an answer takes what was sent."""
    return status is not None and status // 100 == 2  # noqa: PLR2004 - 2xx


def is_final(status: int | None) -> bool:
    """Return whether an answer ends a delivery: 2xx, 3xx and 4xx do."""
    return status is not None and HTTPStatus.OK <= status < HTTPStatus.INTERNAL_SERVER_ERROR


def sets_aside(status: int | None) -> bool:
    """Return whether an answer lets the next message go first: 5xx does, but 503 holds the line."""
    return status is not None and not is_final(status) and status != requests.codes.service_unavailable


def copies(exchanges: Iterable[Exchange], has_ended: Callable[[int | None], bool]) -> Iterator[Exchange]:
    """Yield the exchanges of events that an earlier answer had ended."""
    ended: set[int] = set()
    for one in exchanges:
        if one.number in ended:
            yield one
        if has_ended(one.status):
            ended.add(one.number)


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
