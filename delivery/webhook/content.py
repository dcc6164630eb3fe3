"""What is delivered of messages: their bodies, and which of the publisher's headers (contract 2.11).

What lines are sending, and what was read recently, stays in memory.
"""

import json
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
from django.db import InternalError
from psycopg.errors import DataCorrupted, IndexCorrupted

from broker_project.core.db import Rows, rows
from subscriptions.headers import OF_THE_CONNECTION

log = structlog.get_logger(__name__)

COLUMNS: Final = """m.id AS stored, COALESCE(e.name, ''), m.body, m.content_type, m.headers::text,
       (extract(epoch FROM m.published_at) * 1000)::bigint"""
"""The arguments of `content_of`, of a message `m` and its event type `e`."""
MESSAGE: Final = """(SELECT * FROM delivery_message m WHERE m.id = {id} LIMIT 1) m ON true
  LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id"""
"""The LATERAL join to both: it forces one index look-up for each message, however many there are."""
FIRST_MESSAGE: Final = """message_of({id}) m ON true
  LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id"""
"""The same for few messages: the function sets up the partition of its message only, the join above all of them."""
MESSAGES: Final = f"""
SELECT {COLUMNS} FROM unnest(%s::bigint[]) AS i (id) JOIN LATERAL {MESSAGE.format(id="i.id")}
"""

RECENT_BYTES: Final = 4 * 1024 * 1024
"""Contents that stay in memory although no line is sending them."""
MAX_KEPT_CHARACTERS: Final = 4096
"""Of headers that stay in memory as they were read: a publisher may send others with each message."""
EMPTY_BYTES: Final = 512
"""Memory of a content without body and headers."""

NEVER_KEPT: Final = OF_THE_CONNECTION | {"authorization", "callbackurl"}
"""The publisher's credentials, which include a callback's address, and headers of its connection."""

FORWARDED: Final = frozenset({"content-type", "traceparent"})
FORWARDED_PREFIXES: Final = ("ce-", "x-")
NOT_FORWARDED: Final = frozenset(
    {"x-anonymous-consumer", "x-host", "x-scheme", "x-true-client-ip", "x-url-scheme", "x-userinfo"}
)
NOT_FORWARDED_PREFIXES: Final = (
    # where a request comes from
    *("x-forwarded", "x-real-", "x-remote-", "x-client-ip", "x-cluster-client-ip", "x-originating-"),
    # what it asks for
    *("x-original-", "x-rewrite-", "x-http-method", "x-method-override", "x-script-name", "x-sendfile"),
    # who asks
    *("x-auth-request-", "x-authenticated-", "x-consumer-", "x-credential-", "x-token-", "x-webauth-", "x-ssl-"),
    # all that one product adds
    *("x-accel-", "x-amzn-oidc-", "x-arr-", "x-azure-", "x-envoy-", "x-goog-authenticated-user-", "x-goog-iap-"),
    "x-ms-client-principal",
)
"""Headers in which proxies pass on a request's origin, user and target: a publisher could forge them in the broker's
name. These are the known ones; there may be others."""

Header = tuple[str, str]
Headers = tuple[Header, ...]


@dataclass(slots=True, weakref_slot=True)
class Content:
    """What is delivered of a message."""

    message_id: int
    """0: it is not stored."""
    event_type: str
    body: bytes
    headers: Headers
    """The publisher's headers that are forwarded, and the content type."""
    content_type: str = ""
    stored_headers: str = "[]"
    """All headers that were kept, as JSON pairs of name and value."""
    published_ms: int = 0
    """In milliseconds since 1970."""
    url: str = ""
    """Its destination where a script has appended to the destination's own URL."""
    known_as: str = ""
    """Its id where it is not stored."""
    script_headers: Headers | None = None
    """Those that a script made, None if none ran; then `body` and `url` are as it made them."""

    @property
    def size(self) -> int:
        """The memory it takes, in bytes, roughly: `headers` may be as long as all that were stored."""
        return EMPTY_BYTES + len(self.body) + 2 * len(self.stored_headers)


def kept(headers: Sequence[Header]) -> list[Header]:
    """Return the headers that are stored with the message and can be filtered on."""
    options = [value for name, value in headers if len(name) == len("connection") and name.lower() == "connection"]
    dropped = _dropped_with(",".join(options)) if options else NEVER_KEPT
    return [(name, value) for name, value in headers if name.lower() not in dropped]


@lru_cache(maxsize=64)
def _dropped_with(options: str) -> frozenset[str]:
    """Return the headers that are not kept beside a `Connection` that names further ones (RFC 9110 7.6.1)."""
    return NEVER_KEPT.union(option.strip().lower() for option in options.split(","))


@lru_cache(maxsize=1024)
def is_forwarded(name: str) -> bool:
    """Tell whether endpoints get a stored header of this name too."""
    lower = name.lower()
    plain = lower.replace("_", "-")  # behind CGI, WSGI and PHP an underscore is a hyphen
    is_of_a_proxy = plain in NOT_FORWARDED or plain.startswith(NOT_FORWARDED_PREFIXES)
    return lower in FORWARDED or (lower.startswith(FORWARDED_PREFIXES) and not is_of_a_proxy)


def merged(*layers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of all layers; of equal names, in any case, the later layer's wins."""
    by_name = {name.lower(): (name, value) for layer in layers for name, value in layer.items()}
    return dict(by_name.values())


class _Recent:
    """The contents read last, kept alive until newer ones take their place."""

    def __init__(self) -> None:
        self._contents: deque[tuple[Content, int]] = deque()
        self._bytes = 0

    def keep(self, content: Content) -> None:
        size = content.size
        self._contents.append((content, size))
        self._bytes += size
        while self._bytes > RECENT_BYTES:
            self._bytes -= self._contents.popleft()[1]


_recent = _Recent()
_alive: WeakValueDictionary[int, Content] = WeakValueDictionary()
"""Messages never change. A line reads a page while some of the last is left, and one message goes to many lines."""


def contents_of(message_ids: Collection[int]) -> dict[int, Content]:
    """Return what is delivered of each message, by its id; one that is deleted or damaged is missing.

    For the worker's thread.
    """
    known = {message_id: content for message_id in message_ids if (content := _alive.get(message_id))}
    if unknown := sorted(set(message_ids) - known.keys()):
        for row in _readable(unknown):
            content = content_with(row)
            known[content.message_id] = content
    return known


def _readable(message_ids: Sequence[int]) -> Rows:
    """Return the rows of messages, without those that PostgreSQL cannot read: it stores a piece of them no more."""
    try:
        return rows(MESSAGES, [[*message_ids]])
    except InternalError as failure:
        if not isinstance(failure.__cause__, DataCorrupted | IndexCorrupted):
            raise
        if len(message_ids) > 1:
            return [row for one in message_ids for row in _readable([one])]
        log.exception("delivery.message_damaged", message_id=message_ids[0])
        return []


def content_with(columns: Sequence[Any]) -> Content:
    """Return what is delivered of a message, read as `COLUMNS`. For the worker's thread."""
    content = _alive.get(columns[0])
    if content is None:
        content = _alive[columns[0]] = content_of(*columns)
        _recent.keep(content)
    return content


def content_of(
    message_id: int,
    event_type: str,
    body: bytes,
    content_type: str,
    headers: str,
    published_ms: int,
    known_as: str = "",
) -> Content:
    """Return what is delivered of a message; `headers` are all that were kept, as JSON pairs."""
    forwarded = _forwarded if len(headers) <= MAX_KEPT_CHARACTERS else _forwarded.__wrapped__
    return Content(
        message_id=message_id,
        event_type=event_type,
        body=body,
        headers=forwarded(content_type, headers),
        content_type=content_type,
        stored_headers=headers,
        published_ms=published_ms,
        known_as=known_as,
    )


@lru_cache(maxsize=256)
def _forwarded(content_type: str, headers: str) -> Headers:
    found = {name.lower(): (name, value) for name, value in json.loads(headers) if is_forwarded(name)}
    found["content-type"] = ("Content-Type", content_type)
    return tuple(found.values())
