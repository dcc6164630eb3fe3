"""Messages as the broker hands them out, its results for receipts, and its errors."""

import base64
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final

import requests
from requests.structures import CaseInsensitiveDict

BOOT_TIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)
TRANSIENT_STATUSES: Final = frozenset({408, 429, *range(500, 1000)})


def now() -> float:
    """Return seconds of a clock that nobody sets, and that counts suspended time where there is such a clock."""
    return time.monotonic() if BOOT_TIME is None else time.clock_gettime(BOOT_TIME)


class BrokerError(Exception):
    """An error response of the broker, or of a proxy before it; the text says what is wrong."""

    def __init__(self, status: int, text: str, retry_after: float | None) -> None:
        super().__init__(status, text, retry_after)  # what it is made of again in another process
        self.status = status
        self._text = text
        self.retry_after = retry_after
        """Seconds after which to try again, if the response says so."""

    def __str__(self) -> str:
        return f"{self.status}: {self._text}"

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later."""
        return self.status in TRANSIENT_STATUSES

    @classmethod
    def from_response(cls, response: requests.Response) -> "BrokerError":
        """Return the error of a response, with each field that its problem document names."""
        document: Any = None
        with contextlib.suppress(ValueError):
            document = response.json()
        problem = document if isinstance(document, dict) else {}
        text = problem.get("detail") or problem.get("title") or response.reason
        errors = problem.get("errors")
        details = []
        for error in errors if isinstance(errors, list) else []:
            if isinstance(error, dict) and "detail" in error:
                field = str(error.get("parameter") or error.get("pointer") or "").lstrip("#/")
                details.append(f"{field}: {error['detail']}" if field else str(error["detail"]))
        return cls(response.status_code, f"{text} {'; '.join(details)}".rstrip(), retry_after(response))


def retry_after(response: requests.Response) -> float | None:
    """Return the seconds that the broker asks to wait, None if it names none."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


@dataclass(frozen=True, slots=True)
class Message:
    """One message in flight: it belongs to this client until it is acknowledged, returned or timed out."""

    receipt: str
    """Names this fetch of the message, and no other."""

    id: str
    """The same each time the message is fetched: recognise repetitions by it."""

    delivery_id: int
    message_id: int
    event_type: str
    subscription_id: int
    published_at: datetime
    in_flight_until: datetime
    """By the clock of the broker's database: for people."""

    held_until: float
    """Until then no other client gets the message. Measured by `now`, not by the broker's clock."""

    redeliveries: int
    possible_duplicate: bool
    """Whether a client may have received it before."""

    content_type: str
    headers: Mapping[str, str]
    """By name, case-insensitive."""

    body: bytes
    """Byte for byte what was published."""

    @property
    def seconds_left(self) -> float:
        """Seconds until it times out, unless it was extended."""
        return self.held_until - now()

    def json(self) -> Any:
        """Return the body as a JSON value; raise ValueError if it is not JSON."""
        return json.loads(self.body)

    @classmethod
    def parse(cls, document: Mapping[str, Any], *, since: float) -> "Message":
        """Return the message of an API object; it was fetched at `since` or later, by `now`."""
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
            body=document["body"].encode() if "body" in document else base64.b64decode(document["body_base64"]),
        )


@dataclass(frozen=True, slots=True)
class ReceiptResult:
    """The broker's result for one receipt."""

    receipt: str
    status: int
    """200; 409 if the message no longer belongs to this client; 404 for an unknown receipt."""

    code: str
    """The reason as a code: `acknowledged`, `returned`, `stale_receipt`, ..."""

    delivery_status: str
    """Status of a delivery that has ended; else empty."""

    in_flight_until: datetime | None
    """By the clock of the broker's database; None if it was not extended."""

    held_until: float
    """By `now`; 0 if it was not extended."""

    @property
    def is_ok(self) -> bool:
        """Whether the call has taken effect, now or earlier."""
        return self.status == HTTPStatus.OK

    @classmethod
    def parse(cls, document: Mapping[str, Any], *, since: float) -> "ReceiptResult":
        """Return the result of an API object; the call was made at `since`, by `now`."""
        text = document.get("in_flight_until")
        return cls(
            receipt=document["receipt"],
            status=document["status"],
            code=document["code"],
            delivery_status=document.get("delivery_status", ""),
            in_flight_until=datetime.fromisoformat(text) if text else None,
            held_until=since + document["in_flight_seconds"] if text else 0.0,
        )
