"""The filters by which messages and deliveries are searched for, beside those that an index answers (contract 2.16)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from django.db.models import Q, QuerySet
from rest_framework import serializers

from broker_project.core.api.fields import MomentField, TextField
from broker_project.core.api.pagination import Order, Page, PageQuery, Search, Stretch, ids_along, page_of
from delivery.models import Delivery, IdempotencyKey, Message, MessageOutcome
from delivery.status.delivery_search import Finder
from delivery.status.message_search import HeaderValue, MessageSearch, ids_between
from subscriptions.filters import parse_filter, validate_filter
from subscriptions.models import EventType, Publisher

SEARCHED: Final = ("from", "to", "publisher", "idempotency_key", "header", "filter")
"""The filters of both lists that no index answers alone."""


class SearchQuery(PageQuery):
    """The filters of messages and deliveries by time and by the message."""

    from_ = MomentField(help_text="Only those of then or later.")
    to = MomentField(help_text="Only those before.")
    event_type = TextField(help_text="An event type's name.")
    publisher = TextField(help_text="A publisher's name.")
    idempotency_key = TextField(help_text="What the message was published with, as long as the key is kept.")
    header = TextField(help_text="A header that the message was published with: `X-Team`, or `X-Team: blue`.")
    filter = TextField(
        validators=[validate_filter], help_text="A filter, as of a subscription, that the message passes."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse a range that ends before it begins."""
        if "from" in attrs and "to" in attrs and attrs["from"] >= attrs["to"]:
            raise serializers.ValidationError({"to": ["This is not after `from`."]})
        return attrs


def _between(column: str, query: dict[str, Any]) -> Q:
    """Return the condition for the query's range of time."""
    begin = Q(**{f"{column}__gte": query["from"]}) if "from" in query else Q()
    return begin & (Q(**{f"{column}__lt": query["to"]}) if "to" in query else Q())


def _messages_in(query: dict[str, Any]) -> MessageSearch:
    """Return what the query asks of messages."""
    names = {"event_type": "event_type__name", "publisher": "publisher__name", "outcome__in": "outcome__in"}
    columns = Q(**{column: query[name] for name, column in names.items() if name in query})
    if "idempotency_key" in query:
        keys = IdempotencyKey.objects.filter(key=query["idempotency_key"])
        columns &= Q(pk__in=[*keys.values_list("message_id", flat=True)])
    return MessageSearch(
        columns=columns,
        header=HeaderValue.parsed(query["header"]) if "header" in query else None,
        filter=parse_filter(query["filter"]) if "filter" in query else None,
    )


def along_one_index(rows: QuerySet[Message], query: Mapping[str, Any]) -> QuerySet[Message]:
    """Narrow messages by the one condition of the query that an index answers; all others are for the slices."""
    if "event_type" in query:
        return rows.filter(event_type__in=[*EventType.objects.filter(name=query["event_type"])])
    if "publisher" in query:
        return rows.filter(publisher__in=[*Publisher.objects.filter(name=query["publisher"])])
    outcomes = query.get("outcome__in", ())
    if len(outcomes) == 1 and MessageOutcome.ROUTED not in outcomes:
        return rows.filter(outcome=outcomes[0])
    return rows


def searched_messages(
    along: QuerySet[Message], rows: QuerySet[Message], order: Order, query: dict[str, Any]
) -> Page[Message]:
    """Return a page of messages: candidates are read from `along`, which an index finds; `rows` may be seen."""
    wanted = _messages_in(query)
    wanted.columns &= _between("published_at", query)
    wanted.subscriber, wanted.statuses = query.get("subscriber"), query.get("status", ())
    if "idempotency_key" in query:
        along = rows.filter(wanted.columns)
    low, high = ids_between(Message.objects.all(), "published_at", query.get("from"), query.get("to"))
    search = Search(ids_along(along, low, high), wanted.kept, wanted.slice_size, "published_at", low, high)
    return page_of(rows, order, query, search)


def searched_deliveries(
    rows: QuerySet[Delivery], order: Order, query: dict[str, Any], find: Finder | None
) -> Page[Delivery]:
    """Return a page of deliveries: candidates are found by `find`, which an index answers, or read from `rows`."""
    wanted = _messages_in(query)
    low, high = ids_between(Delivery.objects.all(), "created_at", query.get("from"), query.get("to"))
    if "idempotency_key" in query:
        keyed = Message.objects.filter(wanted.columns).values_list("pk", flat=True)
        rows, find = rows.filter(message__in=[*keyed]), None

    def kept(ids: Sequence[int]) -> Collection[int]:
        timely = Delivery.objects.filter(_between("created_at", query), pk__in=ids)
        return wanted.kept_rows(dict(timely.values_list("pk", "message_id")))

    candidates = found_by(find) if find else ids_along(rows, low, high)
    return page_of(rows, order, query, Search(candidates, kept, wanted.slice_size, "created_at", low, high))


def found_by(find: Finder) -> Callable[[Stretch], Sequence[int]]:
    """Return what reads the ids of a stretch with `find`."""
    return lambda stretch: find(key=stretch.key, downwards=stretch.downwards, limit=stretch.limit)
