"""Filters of lists by what no index knows: headers and bodies of messages, and who gets them (contract 2.16)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.db.models import Q
from django.http import QueryDict

from broker_project.core.admin.lists import OfContents
from delivery.models import IdempotencyKey
from delivery.status.message_search import HeaderValue, MessageSearch
from subscriptions.filters import FilterSyntaxError, parse_filter


def of_contents(
    asked: QueryDict, messages_of: Callable[[Sequence[int]], Mapping[int, int | None]], **more: Any
) -> OfContents | None:
    """Return how rows are searched by the contents of their messages, which `messages_of` names; None: they are not."""
    keyed, header, text = with_key(asked), asked.get("header"), asked.get("filter")
    try:
        passed = parse_filter(text) if text else None
    except FilterSyntaxError as mistake:
        raise IncorrectLookupParameters(f'"{text}" is no filter: {mistake}.') from None
    wanted = MessageSearch(
        columns=Q() if keyed is None else Q(pk__in=keyed),
        header=HeaderValue.parsed(header) if header else None,
        filter=passed,
        **more,
    )
    return None if wanted.is_any else (lambda ids: wanted.kept_rows(messages_of(ids)), wanted.slice_size)


def with_key(asked: QueryDict) -> list[int] | None:
    """Return the messages of the idempotency key that a list is narrowed to; None: it is not."""
    key = asked.get("idempotency_key")
    return [*IdempotencyKey.objects.filter(key=key).values_list("message_id", flat=True)] if key else None
