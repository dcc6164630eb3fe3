"""Load what is delivered of messages; what lines are sending, and what was read recently, stays in memory."""

import json
from collections import deque
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

from broker_project.core.db import rows
from delivery.webhook.headers_policy import is_forwarded
from delivery.webhook.parts import Content, Headers

COLUMNS: Final = """m.id AS stored, COALESCE(e.name, ''), m.body, m.content_type, m.headers::text,
       (extract(epoch FROM m.published_at) * 1000)::bigint"""
"""The arguments of `content_of`, of a message `m` and its event type `e`."""
MESSAGE: Final = """(SELECT * FROM delivery_message m WHERE m.id = {id} LIMIT 1) m ON true
  LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id"""
"""The LATERAL join to both: it forces one index look-up for each message, however many there are."""
MESSAGES: Final = f"""
SELECT {COLUMNS} FROM unnest(%s::bigint[]) AS i (id) JOIN LATERAL {MESSAGE.format(id="i.id")}
"""

RECENT_BYTES: Final = 4 * 1024 * 1024
"""Contents that stay in memory although no line is sending them."""


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
    """Return what is delivered of each message, by its id; deleted messages are missing. For the worker's thread."""
    known = {message_id: content for message_id in message_ids if (content := _alive.get(message_id))}
    if unknown := sorted(set(message_ids) - known.keys()):
        for row in rows(MESSAGES, [unknown]):
            content = content_with(row)
            known[content.message_id] = content
    return known


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
    return Content(
        message_id=message_id,
        event_type=event_type,
        body=body,
        headers=_forwarded(content_type, headers),
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
