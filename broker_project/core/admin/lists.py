"""The lists of all admin pages: filters as chips, filters by time and by several values, pages without numbers.

A list of a large table is read like one of the API: from the newest row on, along an index, a slice at a time.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, SEARCH_VAR
from django.db.models import Q, QuerySet
from django.http import HttpRequest, QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from unfold.contrib.filters import admin as filters
from unfold.views import ChangeList

from broker_project.core.api.fields import MAX_ID, id_of
from broker_project.core.api.pagination import Order, Search, Stretch, ids_along, page_of
from broker_project.core.api.problems import InvalidQuery

SLICE: Final = 1_000
"""Rows that are looked at together, unless the list says otherwise."""
SINCE: Final = {
    "1h": ("Last hour", dt.timedelta(hours=1)),
    "24h": ("Last 24 hours", dt.timedelta(days=1)),
    "7d": ("Last 7 days", dt.timedelta(days=7)),
}
NO_FILTERS: Final = frozenset({PAGE_VAR, SEARCH_VAR, ORDER_VAR})


class ListPage(ChangeList):  # type: ignore[misc]
    """A page of a list, which names its filters, each with a way to remove it."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows; "Show all" is offered only where something is filtered away."""
        super().get_results(request)
        if not (self.query or self.has_active_filters):
            self.full_result_count = self.result_count

    def chips(self) -> Iterator[tuple[str, str]]:
        """Return each filter in words, and the address of the list without it."""
        asked = {name: values for name, values in self.get_filters_params().items() if name not in NO_FILTERS}
        for name, values in asked.items():
            for value in filter(None, values):
                others = [other for other in values if other != value]
                yield self._words(name, value), self.get_query_string({name: others or None})

    def _words(self, name: str, value: str) -> str:
        for spec in self.filter_specs:
            if name in spec.expected_parameters():
                return f"{spec.title}: {_shown(spec, name, value)}"
        return f"{name.partition('__')[0]}: {value}"


def _shown(spec: Any, name: str, value: str) -> object:
    """Return the value of a filter in words."""
    if isinstance(spec, TimeFilter):
        return SINCE[value][0] if value in SINCE else f"{name} {value.replace('T', ' ')}"
    if isinstance(spec, admin.RelatedFieldListFilter):
        model: Any = spec.field.related_model
        row = model._default_manager.filter(pk=id_of(value) or 0).first()  # noqa: SLF001 - documented by Django
        return row or value
    choices: Any = getattr(spec, "lookup_choices", None) or getattr(getattr(spec, "field", None), "flatchoices", ())
    return dict(choices).get(value, value)


class KeysetPage(ListPage):
    """A page of a large table's list, newest first; it begins after the row that its address names."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows; what a filter leaves of them is searched for, which ends after some seconds."""
        order = Order(f"admin {self.opts.label_lower}", column=self.opts.pk.name, descending=True)
        query = {"limit": self.list_per_page, "cursor": request.GET.get(PAGE_VAR)}
        try:
            page = page_of(self.queryset, order, query, self.search(request))
        except InvalidQuery:
            raise IncorrectLookupParameters("This page is not of this list: begin with the first one.") from None
        self.result_list = page.rows
        self.result_count = self.full_result_count = len(page.rows)
        self.newer, self.older = (
            cursor and self.get_query_string({PAGE_VAR: cursor}) for cursor in (page.previous, page.next)
        )
        self.searched_until = page.searched_until
        self.show_admin_actions, self.can_show_all, self.multi_page = True, False, False
        self.show_full_result_count = False
        self.paginator = SimpleNamespace(template_name="broker_project/keyset_pages.html")

    def search(self, request: HttpRequest) -> Search | None:
        """Return how the filtered rows are found; None: the database finds them, along the key."""
        pages = self.model_admin
        of_contents = pages.of_contents(request.GET)
        along = None if self.query else pages.candidates(request.GET)
        if not of_contents and (self.query or not (along or self.has_active_filters)):
            return None
        times = [spec for spec in self.filter_specs if isinstance(spec, TimeFilter)]
        low, high = pages.ids_between(times[0].begin, times[0].end) if times else (0, MAX_ID)
        rows = self.queryset.order_by() if self.query else self.model._default_manager.all()  # noqa: SLF001 - documented

        def kept(ids: Sequence[int]) -> Collection[int]:
            found = [*self.queryset.filter(pk__in=ids).order_by().values_list("pk", flat=True)]
            return of_contents[0](found) if of_contents else {*found}

        size = of_contents[1] if of_contents else SLICE
        return Search(along or ids_along(rows, low, high), kept, size, pages.time_column or "pk", low, high)


Candidates = Callable[[Stretch], Sequence[int]]
"""Reads the ids of a stretch along an index."""
OfContents = tuple[Callable[[Sequence[int]], Collection[int]], int]
"""Returns which of some rows are wanted by what no statement can tell; and how many are looked at together."""


class TimeFilter(admin.ListFilter):
    """Rows of a range of time."""

    title, template = "time", "broker_project/time_filter.html"
    column = ""
    names = ("from", "to")
    """In addresses."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        for name in self.names:
            if name in params:
                self.used_parameters[name] = params.pop(name)[-1]
        now = timezone.now()
        given: dict[str, Any] = self.used_parameters
        self.begin, self.end = (_moment(given.get(name), now) for name in self.names)

    def has_output(self) -> bool:
        """Return that it is always shown."""
        return True

    def expected_parameters(self) -> list[str | None]:
        """Return its names in addresses."""
        return [*self.names]

    def inputs(self) -> list[tuple[str, str]]:
        """Return the fields of its form with their values."""
        times = zip(self.names, (self.begin, self.end), strict=True)
        given = ((name, at if self.used_parameters.get(name) not in SINCE else None) for name, at in times)
        return [(name, f"{timezone.localtime(at):%Y-%m-%dT%H:%M:%S}" if at else "") for name, at in given]

    def choices(self, changelist: ChangeList) -> Iterator[dict[str, Any]]:
        """Return the ranges that one click chooses."""
        for value, (text, _) in SINCE.items():
            address = changelist.get_query_string({"from": value, "to": None})
            yield {"display": text, "query_string": address, "selected": self.used_parameters.get("from") == value}

    def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":  # noqa: ARG002
        """Return the rows of the range."""
        begin = Q(**{f"{self.column}__gte": self.begin}) if self.begin else Q()
        return queryset.filter(begin & (Q(**{f"{self.column}__lt": self.end}) if self.end else Q()))


def _moment(text: str | None, now: dt.datetime) -> dt.datetime | None:
    """Return the time that an address names: since a while, or a time of UTC."""
    if not text:
        return None
    if text in SINCE:
        return now - SINCE[text][1]
    try:
        if parsed := parse_datetime(text):
            return parsed.astimezone(dt.UTC) if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError):
        pass
    raise IncorrectLookupParameters(f'"{text}" is no time; write one as in 2026-12-24T18:00.')


def with_fixed_times(given: QueryDict) -> QueryDict:
    """Return the query of a list's address with times in place of ranges such as the last hour, which move on."""
    fixed, now = given.copy(), timezone.now()
    for name in TimeFilter.names:
        if since := SINCE.get(str(given.get(name))):
            fixed[name] = f"{now - since[1]:%Y-%m-%dT%H:%M:%S}"
    return fixed


def time_filter(of_column: str) -> type[TimeFilter]:
    """Declare a filter by a column of times."""
    return cast("type[TimeFilter]", type("TimeFilter", (TimeFilter,), {"column": of_column}))


def choice_filter(
    title: str, parameter: str, choices: Mapping[str, tuple[str, Callable[[Any], Any]]]
) -> type[admin.SimpleListFilter]:
    """Declare a list filter: by value, the label of each choice and how it narrows the rows."""

    class ChoiceFilter(admin.SimpleListFilter):
        parameter_name = parameter

        def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
            return [(value, choice[0]) for value, choice in choices.items()]

        def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":  # noqa: ARG002
            value = self.value()
            if value is None:
                return queryset
            return cast("QuerySet[Any]", choices[value][1](queryset)) if value in choices else queryset.none()

    ChoiceFilter.title = title
    return ChoiceFilter


def several_filter(
    title_: str,
    parameter: str,
    choices_: Mapping[str, str],
    narrow: Callable[["QuerySet[Any]", Sequence[str]], "QuerySet[Any]"],
) -> type[admin.SimpleListFilter]:
    """Declare a filter by several of a few values: their labels, and how they narrow the rows."""

    class SeveralFilter(filters.CheckboxFilter):  # type: ignore[misc]
        title, parameter_name = title_, parameter

        def lookups(self, request: HttpRequest, model_admin: object) -> list[tuple[str, str]]:  # noqa: ARG002
            return [*choices_.items()]

        def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":  # noqa: ARG002
            chosen = [*filter(None, self.value())]
            if not choices_.keys() >= {*chosen}:
                return queryset.none()
            return narrow(queryset, chosen) if chosen else queryset

    return SeveralFilter


def text_filter(title_: str, parameter: str) -> type[admin.SimpleListFilter]:
    """Declare a filter by a text, which the list searches for in what it finds."""

    class OneTextFilter(filters.TextFilter):  # type: ignore[misc]
        title, parameter_name = title_, parameter

        def queryset(self, request: HttpRequest, queryset: "QuerySet[Any]") -> "QuerySet[Any]":  # noqa: ARG002
            return queryset

    return OneTextFilter
