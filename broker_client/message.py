"""A message as it is handed out, and what the broker says of a receipt."""

import base64
import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import requests
from requests.structures import CaseInsensitiveDict

from broker_client.clock import now

SERVER_ERROR: Final = 500
TOO_MANY_REQUESTS: Final = 429
REQUEST_TIMEOUT: Final = 408

OK: Final = 200


class Refused(Exception):
    """The broker, or a proxy before it, answered with an error; the message says what is wrong."""

    def __init__(self, status: int, text: str, retry_after: float | None) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status
        self.retry_after = retry_after
        """Seconds after which to try again, if the answer says so."""

    @property
    def passes(self) -> bool:
        """Whether the same call may well be answered later: the fault is not the caller's."""
        return self.status >= SERVER_ERROR or self.status in {TOO_MANY_REQUESTS, REQUEST_TIMEOUT}


def refusal(answer: requests.Response) -> Refused:
    """Return the error that an answer is."""
    document: Any = None
    with contextlib.suppress(ValueError):
        document = answer.json()
    known = document if isinstance(document, dict) else {}
    text = known.get("detail") or known.get("title") or answer.reason
    return Refused(answer.status_code, f"{text} {'; '.join(_errors(known))}".rstrip(), retry_after(answer))


def _errors(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with each field, or parameter, as a problem document of the broker says it."""
    errors = document.get("errors")
    for error in errors if isinstance(errors, list) else []:
        if isinstance(error, dict) and "detail" in error:
            place = str(error.get("parameter") or error.get("pointer") or "").lstrip("#/")
            yield f"{place}: {error['detail']}" if place else str(error["detail"])


def retry_after(answer: requests.Response) -> float | None:
    """Return how long the broker asks to wait: it says so in seconds."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Message:
    """One message that the broker has handed out: ours until it is acknowledged, returned, or its time is up."""

    receipt: str
    """Names this hand-out, and no other one of the same message."""

    id: str
    """The same each time the message is handed out, and no other's: by it a repetition is known."""

    delivery_id: int
    message_id: int
    event_type: str
    subscription_id: int
    published_at: datetime
    in_flight_until: datetime
    """By the clock of the broker's database: for people."""

    held_until: float
    """By `clocks.now`: so long it is surely ours, whatever other clocks say."""

    redeliveries: int
    possible_duplicate: bool
    """Whether somebody may have got it before."""

    content_type: str
    headers: Mapping[str, str]
    """By name, in whatever case."""

    body: bytes
    """Byte for byte what was published."""

    @property
    def seconds_left(self) -> float:
        """For how long it is surely ours yet, unless it has been extended since."""
        return self.held_until - now()

    def json(self) -> Any:
        """Return what the body says; raise ValueError where it is no JSON."""
        return json.loads(self.body)

    @classmethod
    def read(cls, document: Mapping[str, Any], *, since: float) -> "Message":
        """Read one message, handed out no sooner than `since` by our clock."""
        return cls(
            receipt=document["receipt"],
            id=document["id"],
            delivery_id=document["delivery_id"],
            message_id=document["message_id"],
            event_type=document["event_type"],
            subscription_id=document["subscription_id"],
            published_at=datetime.fromisoformat(document["published_at"]),
            in_flight_until=datetime.fromisoformat(document["in_flight_until"]),
            held_until=since + document["in_flight_seconds"],
            redeliveries=document["redeliveries"],
            possible_duplicate=document["possible_duplicate"],
            content_type=document["content_type"],
            headers=CaseInsensitiveDict(document["headers"]),
            body=_body(document),
        )


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one receipt of a call."""

    receipt: str
    status: int
    """200, or 409 where the message is no longer ours, or 404 where there is no such receipt."""

    code: str
    """Why, in one word of the broker's: `acknowledged`, `returned`, `stale_receipt`, ..."""

    delivery_status: str
    """Where the delivery has ended: how; else empty."""

    in_flight_until: datetime | None
    """By the clock of the broker's database; None if it was not extended."""

    held_until: float
    """By `clocks.now`: so long the message is surely ours from now on; 0 if it was not extended."""

    @property
    def is_good(self) -> bool:
        """Whether what was asked for holds, now or already before."""
        return self.status == OK

    @classmethod
    def read(cls, document: Mapping[str, Any], *, since: float) -> "Result":
        """Read one result of a call that was made at `since` by our clock."""
        text = document.get("in_flight_until")
        return cls(
            receipt=document["receipt"],
            status=document["status"],
            code=document["code"],
            delivery_status=document.get("delivery_status", ""),
            in_flight_until=datetime.fromisoformat(text) if text else None,
            held_until=since + document["in_flight_seconds"] if text else 0.0,
        )


def _body(document: Mapping[str, Any]) -> bytes:
    if "body" in document:
        text: str = document["body"]
        return text.encode()
    return base64.b64decode(document["body_base64"])
