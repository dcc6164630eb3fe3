"""How many of the newest messages of an event type filters let through, before anybody saves them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from delivery.models import Message
from delivery.status.explain_message import shown_of
from subscriptions.filters import Filter, FilterFailed, Work
from subscriptions.models import EventType

TRIED_AT_MOST: Final = 500
"""So many of the newest messages is a filter tried on,"""
TRIED_BYTES: Final = 32 * 2**20
"""with bodies of so many bytes together."""
AT_ONCE: Final = 20
"""So many messages are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Trial:
    """How many of the newest messages of an event type the filters of a subscription let through."""

    tried: int
    matching: int
    failing: int


def newest_of(event_type: EventType) -> Message | None:
    """Return the newest message published of an event type, None where there is none."""
    return Message.objects.filter(event_type=event_type, answers=None).order_by("-pk").first()


def try_filters(wanted: Filter | None, event_type: EventType, *, header_filter_string: str = "") -> Trial:
    """Return how many of the newest messages of an event type pass the filters; None or an empty one is not set.

    What they may do together is what the filters of one publish may: then no older message is tried.
    """
    matching = failing = tried = 0
    work = Work()
    for message in _newest(event_type):
        shown = shown_of(message)
        shown.document.work = work
        try:
            if not header_filter_string or message.filter_string == header_filter_string:
                matching += wanted is None or wanted.matches(shown.document)
        except FilterFailed:
            if work.is_used_up:
                break
            failing += 1
        tried += 1
    return Trial(tried, matching, failing)


def _newest(event_type: EventType) -> Iterator[Message]:
    """Yield the newest messages, few at a time: each may be as large as messages are."""
    of_type = Message.objects.filter(event_type=event_type, answers=None).order_by("-pk")
    ids, size = [], 0
    for message_id, its_size in of_type.values_list("pk", "size")[:TRIED_AT_MOST]:
        size += its_size
        if size > TRIED_BYTES:
            break
        ids.append(message_id)
    for first in range(0, len(ids), AT_ONCE):
        yield from Message.objects.filter(pk__in=ids[first : first + AT_ONCE])
