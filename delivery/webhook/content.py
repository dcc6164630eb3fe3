"""Loading what is delivered of messages, each as long as somebody has it in hand."""

import json
from collections import deque
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final
from weakref import WeakValueDictionary

from broker_project.core.db import rows
from delivery.webhook.headers_policy import forwarded, merged
from delivery.webhook.parts import Content, Headers

COLUMNS: Final = """m.id AS stored, COALESCE(e.name, ''), m.body, m.content_type, m.headers::text,
       (extract(epoch FROM m.published_at) * 1000)::bigint"""
"""What `content_in` reads, of a message `m` and its event type `e`."""
MESSAGE: Final = """(SELECT * FROM delivery_message m WHERE m.id = {id} LIMIT 1) m ON true
  LEFT JOIN subscriptions_eventtype e ON e.id = m.event_type_id"""
"""What either of them is joined by, LATERAL: an index for each, however many there are."""
MESSAGES: Final = f"""
SELECT {COLUMNS} FROM unnest(%s::bigint[]) AS i (id) JOIN LATERAL {MESSAGE.format(id="i.id")}
"""

RECENT_BYTES: Final = 4 * 1024 * 1024
"""Contents kept although no line has them in hand."""


class _Contents:
    """The contents that some line has in hand, and some that were read lately: a message never changes.

    A line reads its next page while it still has some of the last, and anew in each turn; one message goes to many.
    """

    def __init__(self) -> None:
        self._alive: WeakValueDictionary[int, Content] = WeakValueDictionary()
        self._recent: deque[Content] = deque()
        self._recent_bytes = 0

    def among(self, message_ids: Collection[int]) -> dict[int, Content]:
        return {message_id: content for message_id in message_ids if (content := self._alive.get(message_id))}

    def keep(self, content: Content) -> None:
        self._alive[content.message_id] = content
        self._recent.append(content)
        self._recent_bytes += content.size
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= self._recent.popleft().size


_contents = _Contents()


def contents_of(message_ids: Collection[int]) -> dict[int, Content]:
    """Return what is delivered of each message, by its id; one that is gone is missing. For the driver's thread."""
    known = _contents.among(message_ids)
    if unknown := sorted(set(message_ids) - known.keys()):
        for content in map(content_in, rows(MESSAGES, [unknown])):
            known[content.message_id] = content
            _contents.keep(content)
    return known


def content_in(row: Sequence[Any]) -> Content:
    """Return what is delivered of the message that was read as `COLUMNS`."""
    message_id, event_type, body, content_type, headers, published_ms = row
    going_on = _forwarded(content_type, headers)
    return Content(message_id, event_type, body, going_on, content_type, headers, published_ms)


@lru_cache(maxsize=256)
def _forwarded(content_type: str, headers: str) -> Headers:
    pairs = [(name, value) for name, value in json.loads(headers)]
    return tuple(merged(dict(forwarded(pairs)), {"Content-Type": content_type}).items())
