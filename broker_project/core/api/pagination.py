"""Lists a page at a time: a signed cursor instead of page numbers, and nothing is counted."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from django.core.signing import BadSignature, Signer
from django.db.models import Model, Q, QuerySet
from rest_framework.exceptions import ErrorDetail
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from broker_project.core.api.fields import MAX_ID, QueryNumberField, StrictSerializer, TextField
from broker_project.core.api.problems import InvalidQuery

Row = TypeVar("Row", bound=Model)

SEARCH_SECONDS: Final = 3.0
"""After this time a search ends, and its cursor goes on."""
SEARCHED_UNTIL: Final = {
    "type": "string",
    "format": "date-time",
    "description": "If present, the search ended before the page was full: it has come to this time; `next` goes on.",
}
DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 200
MAX_CURSOR_LENGTH: Final = 1024


class PageQuery(StrictSerializer):
    """The query parameters of every list.

    A subclass declares the filters of one list. A filter's `source` is the column that it is compared with.
    """

    cursor = TextField(max_length=MAX_CURSOR_LENGTH, help_text="Where to continue; take it from `next` or `previous`.")
    limit = QueryNumberField(
        default=DEFAULT_LIMIT, min_value=1, max_value=MAX_LIMIT, help_text="How many items at most."
    )

    def get_fields(self) -> dict[str, Any]:
        """Return the fields; none is required."""
        fields = super().get_fields()
        for field in fields.values():
            field.required = False
        return fields


def query_of(request: Request, query_class: type[StrictSerializer]) -> dict[str, Any]:
    """Return the query parameters by their `source`; raise `InvalidQuery` for an unknown, invalid or repeated one."""
    serializer = query_class(data=request.query_params.dict())
    refused = {
        name: ErrorDetail("Give this query parameter once.", "invalid")
        if name in serializer.fields
        else ErrorDetail("There is no such query parameter.", "unknown_field")
        for name, values in request.query_params.lists()
        if name not in serializer.fields or len(values) > 1
    }
    if refused:
        raise InvalidQuery(refused)
    if not serializer.is_valid():
        raise InvalidQuery(serializer.errors)
    return dict(serializer.validated_data)


@dataclass(frozen=True, slots=True)
class Order:
    """How a list is sorted: by a unique column; `list_name` keeps out cursors of other lists."""

    list_name: str
    column: str = "id"
    descending: bool = False
    first: str = ""
    """A column of times that is sorted by before `column`, and need not be unique; empty: none."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns, in their order."""
        return (self.first, self.column) if self.first else (self.column,)


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    """Some rows, and the cursors of the pages before and after."""

    rows: Sequence[Row]
    previous: str | None
    next: str | None
    searched_until: datetime | None = None
    """The time of the last row that was looked at, if a search ended before its page was full; the cursor goes on."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What a page needs of its list: `limit` rows from `key` on, down or up; None: from the end."""

    key: Any
    downwards: bool
    limit: int


def ids_along(rows: QuerySet[Any], low: int, high: int) -> Callable[[Stretch], Sequence[int]]:
    """Return what reads the ids of these rows from `low` on and below `high`, a stretch at a time.

    Nothing is said of a bound that leaves out nothing: without statistics the planner takes a range of ids for a narrow
    one, and would read all ids instead of the few rows that another index finds.
    """

    def read(stretch: Stretch) -> Sequence[int]:
        least, behind = (low, min(high, stretch.key)) if stretch.downwards else (max(low, stretch.key + 1), high)
        further = rows.filter(pk__gte=least) if least > 0 else rows
        further = further.filter(pk__lt=behind) if behind < MAX_ID else further
        return [*further.order_by("-pk" if stretch.downwards else "pk").values_list("pk", flat=True)[: stretch.limit]]

    return read


@dataclass(frozen=True, slots=True)
class Search:
    """How the rows of a list are found by their ids, where the database alone would not find them along an index."""

    candidates: Callable[[Stretch], Sequence[int]]
    """Reads ids along an index."""
    kept: Callable[[Sequence[int]], Collection[int]] = frozenset
    """Returns which of these ids are wanted."""
    slice_size: int | None = None
    """How many ids are looked at together; None: as many as the page needs."""
    time_column: str = "pk"
    """Tells until when a search has come that ends before its page is full."""
    low: int = 0
    high: int = MAX_ID
    """The ids from `low` on and below `high` are searched."""

    def found(self, stretch: Stretch) -> tuple[list[int], int | None]:
        """Return the ids of a stretch; if the search ends after `SEARCH_SECONDS`, also the last id it looked at."""
        until, size = monotonic() + SEARCH_SECONDS, self.slice_size or stretch.limit
        at = (self.high if stretch.downwards else self.low - 1) if stretch.key is None else stretch.key
        found: list[int] = []
        while len(found) < stretch.limit:
            if monotonic() >= until:
                return found, at
            ids = self.candidates(Stretch(at, stretch.downwards, size))
            within = [one for one in ids if self.low <= one < self.high]
            kept = self.kept(within)
            found += [one for one in within if one in kept]
            if len(within) < size:
                break
            at = ids[-1]
        return found[: stretch.limit], None


def page_of(rows: QuerySet[Row], order: Order, query: dict[str, Any], search: Search | None = None) -> Page[Row]:
    """Return the page of `rows` that the validated `PageQuery` asks for, of those that `search` finds if it is given.

    A cursor that this list did not make raises `InvalidQuery`.
    """
    limit, cursor = query["limit"], query.get("cursor")
    back, key = decoded_cursor(cursor, order) if cursor else (False, None)
    stretch = Stretch(key, order.descending != back, limit + 1)
    if search:
        keys, stopped = search.found(stretch)
        by_key = rows.in_bulk(keys[:limit])
    else:
        beyond = Q() if key is None else _beyond(order, key, "lt" if stretch.downwards else "gt")
        columns = [f"{'-' if stretch.downwards else ''}{column}" for column in order.columns]
        by_key = {_key_of(one, order): one for one in rows.filter(beyond).order_by(*columns)[: stretch.limit]}
        keys, stopped = [*by_key], None
    onwards = keys[limit - 1] if len(keys) > limit else stopped
    returns = (keys[0] if keys else stopped) if cursor else None
    previous, following = (onwards, returns) if back else (returns, onwards)
    page = Page(
        [by_key[one] for one in (keys[:limit][::-1] if back else keys[:limit]) if one in by_key],
        None if previous is None else encoded_cursor(order, previous, back=True),
        None if following is None else encoded_cursor(order, following),
    )
    if search is None or stopped is None:
        return page
    times = rows.model._default_manager.filter(pk=stopped).values_list(search.time_column, flat=True)  # noqa: SLF001 - documented by Django
    return replace(page, searched_until=times.first())


def page_response(request: Request, page: Page[Row], items: Sequence[Any]) -> Response:
    """Return the page with the addresses of its neighbours, in the body and as `Link` (RFC 8288)."""
    urls = {"next": url_of(request, page.next), "previous": url_of(request, page.previous)}
    link = ", ".join(f'<{url}>; rel="{name[:4]}"' for name, url in urls.items() if url)
    searched = {"searched_until": page.searched_until} if page.searched_until else {}
    return Response({"items": items, **urls, **searched}, headers={"Link": link} if link else {})


def url_of(request: Request, cursor: str | None) -> str | None:
    """Return the address of another page of the list that was asked for."""
    return cursor and replace_query_param(request.build_absolute_uri(), "cursor", cursor)


class Pages(BasePagination):
    """How OpenAPI describes a page."""

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a page whose items are an array by `schema`."""
        url = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["items", "next", "previous"],
            "properties": {"items": schema, "next": url, "previous": url, "searched_until": SEARCHED_UNTIL},
        }


def _signer(order: Order) -> Signer:
    return Signer(salt=f"cursor.{order.list_name}")


def _beyond(order: Order, key: Any, comparison: str) -> Q:
    """Return the condition for the rows on the other side of `key`; an index of the first column leads to them."""
    if not order.first:
        return Q(**{f"{order.column}__{comparison}": key})
    first, last = key
    further = Q(**{f"{order.first}__{comparison}": first}) | Q(**{f"{order.column}__{comparison}": last})
    return Q(**{f"{order.first}__{comparison}e": first}) & further


def _key_of(row: Model, order: Order) -> Any:
    key = getattr(row, order.column)
    return (getattr(row, order.first).isoformat(), key) if order.first else key


def encoded_cursor(order: Order, key: Any, *, back: bool = False) -> str:
    """Return the cursor of the page that begins after `key`, or `back` from it."""
    return _signer(order).sign_object([back, key])


def decoded_cursor(cursor: str, order: Order) -> tuple[bool, Any]:
    """Return whether a cursor leads back, and its key; raise `InvalidQuery` if this list did not make it."""
    try:
        back, key = _signer(order).unsign_object(cursor)
    except BadSignature:
        raise InvalidQuery({"cursor": "This cursor does not belong to this list. Start without a cursor."}) from None
    return back, key
