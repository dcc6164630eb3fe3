"""Search messages by what no index knows: headers, the body, who got them (contract 2.16).

Candidates are read along an index, a slice of ids at a time; `MessageSearch` says which of a slice are wanted. A range
of time is a range of ids, since ids are given out in the order of time: its ends are found by bisection.
"""

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.db.models import Exists, OuterRef, Q, QuerySet

from delivery.maintenance.partitions import IDS_PER_DAY, ids_of
from delivery.models import Delivery, Message
from delivery.status.delivery_search import LARGEST_ID, in_status
from delivery.status.explain_message import filter_input_of
from subscriptions.filters import Filter, FilterFailed

SLICE: Final = 1_000
"""Rows that are looked at together."""
SLICE_WITH_BODIES: Final = 10
"""Bodies in memory at a time, between two looks at the clock."""
OLDEST: Final = dt.datetime(2000, 1, 3, tzinfo=dt.UTC)
NEWEST: Final = dt.datetime(2090, 1, 1, tzinfo=dt.UTC)
"""Times of which ids can be: what is older or newer is nothing's."""
LATE: Final = dt.timedelta(minutes=1)
"""Ids are given out in the order of time, except within transactions that run side by side, which take less."""
OF_FILTER_STRING: Final = frozenset({"filter_string", "filter-string"})


@dataclass(frozen=True, slots=True)
class HeaderValue:
    """A header that a message has, with a value, or any."""

    name: str
    value: str | None = None

    @classmethod
    def parsed(cls, text: str) -> "HeaderValue":
        """Return what `Name` or `Name: value` asks for."""
        name, colon, value = text.partition(":")
        return cls(name.strip().lower(), value.strip() if colon else None)

    def is_of(self, headers: Sequence[Sequence[str]], filter_string: str | None) -> bool:
        """Return whether a message with these headers has it."""
        if self.name in OF_FILTER_STRING:
            return filter_string is not None and self.value in {None, filter_string}
        return any(name.lower() == self.name and self.value in {None, value} for name, value in headers)


@dataclass(slots=True, kw_only=True)
class MessageSearch:
    """What messages are searched for; None: anything."""

    columns: Q
    """Conditions on their columns."""
    header: HeaderValue | None = None
    filter: Filter | None = None
    subscriber: str | None = None
    statuses: Sequence[str] = ()
    """Of one of its deliveries; to the subscriber, if one is given."""

    @property
    def is_any(self) -> bool:
        """Whether any message will do."""
        return not (self.columns or self.header or self.filter or self.subscriber or self.statuses)

    @property
    def slice_size(self) -> int:
        """How many are looked at together."""
        return SLICE if self.filter is None else SLICE_WITH_BODIES

    def kept(self, ids: Sequence[int]) -> Collection[int]:
        """Return which of these messages are wanted."""
        rows = Message.objects.filter(self.columns, pk__in=ids)
        wanted = [*rows.values_list("pk", flat=True)]
        if self.header:
            headers = rows.values_list("pk", "headers", "filter_string")
            wanted = [one for one, pairs, filter_string in headers if self.header.is_of(pairs, filter_string)]
        if wanted and (self.subscriber or self.statuses):
            wanted = [*self._with_delivery(wanted)]
        return {*wanted} if self.filter is None else {*self._passing(self.filter, wanted)}

    def kept_rows(self, messages: Mapping[int, int | None]) -> Collection[int]:
        """Return which rows are of messages that are wanted; `messages` has the message of each."""
        if self.is_any:
            return messages
        passing = self.kept([*{one for one in messages.values() if one}])
        return {row for row, message_id in messages.items() if message_id in passing}

    def _with_delivery(self, ids: Sequence[int]) -> Iterator[int]:
        rows = Delivery.objects.filter(message=OuterRef("pk"))
        if self.subscriber:
            rows = rows.filter(subscription__subscriber__name=self.subscriber)
        found = in_status(rows, *self.statuses) if self.statuses else rows
        yield from Message.objects.filter(Exists(found), pk__in=ids).values_list("pk", flat=True)

    def _passing(self, wanted: Filter, ids: Sequence[int]) -> Iterator[int]:
        for message in Message.objects.filter(pk__in=ids):
            try:
                if wanted.matches(filter_input_of(message).document):
                    yield message.pk
            except FilterFailed:
                continue


def ids_between(
    rows: "QuerySet[Any]", column: str, begin: dt.datetime | None, end: dt.datetime | None
) -> tuple[int, int]:
    """Return the first id of a range of time and the one behind it; it may include some that are a little off."""
    low = 0 if begin is None or begin < OLDEST else _first_since(rows, column, min(begin, NEWEST) - LATE)
    high = LARGEST_ID if end is None or end > NEWEST else _first_since(rows, column, max(end, OLDEST) + LATE)
    return low, high


def _first_since(rows: "QuerySet[Any]", column: str, moment: dt.datetime) -> int:
    """Return the lowest id from a moment on, found by bisection.

    The ids of an earlier day are given on until a worker opens the next one, maybe for days.
    """
    first, behind = ids_of(moment.astimezone(dt.UTC).date())
    earlier: int = rows.filter(pk__lt=first).order_by("-pk").values_list("pk", flat=True).first() or first
    low = earlier // IDS_PER_DAY * IDS_PER_DAY
    near = rows.filter(pk__gte=low, pk__lt=behind)
    newest: int = near.order_by("-pk").values_list("pk", flat=True).first() or low - 1
    high = newest + 1
    while low < high:
        middle = (low + high) // 2
        found, time = near.filter(pk__gte=middle).order_by("pk").values_list("pk", column)[0]
        low, high = (found + 1, high) if time < moment else (low, middle)
    return low
