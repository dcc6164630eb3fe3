"""The base of pages about large tables: nothing is edited, counts are limited, contents take a permission."""

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from django.apps import apps
from django.contrib.admin import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import IntegerField, Model, QuerySet
from django.db.models.expressions import OrderBy
from django.http import HttpRequest, QueryDict
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.functional import cached_property
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.lists import (
    Candidates,
    KeysetPage,
    ListPage,
    OfContents,
    text_filter,
    time_filter,
)
from broker_project.core.admin.model_admin import ModelAdmin, Prefetched, column, could_be_of, never, permission
from broker_project.core.admin.theme import copyable, link, preformatted
from broker_project.core.api.fields import MAX_ID, id_of
from delivery.models import Attempt, DeadLetter, Delivery, Message, QueueGroup
from delivery.status.line_status import MAX_COUNTED
from delivery.status.message_search import ids_between
from delivery.status.sent_requests import MAX_SHOWN_BYTES, text_of
from delivery.statuses import ATTEMPT_ID_PREFIX, DELIVERY_ID_PREFIX, GROUP_ID_PREFIX, MESSAGE_ID_PREFIX
from subscriptions.models import Subscription

Record = TypeVar("Record", bound=Model)

MAX_SHOWN: Final = 100
"""How many rows a table within a page has."""
ID_PREFIXES: Final[Mapping[type[Model], str]] = {
    Message: MESSAGE_ID_PREFIX,
    Delivery: DELIVERY_ID_PREFIX,
    DeadLetter: DELIVERY_ID_PREFIX,
    Attempt: ATTEMPT_ID_PREFIX,
    QueueGroup: GROUP_ID_PREFIX,
}
"""What stands before ids where they are shown, and may where they are searched for."""

WITH_IDS_OF_DAYS: Final = frozenset({Message, Delivery, DeadLetter, Attempt})
"""Models whose ids begin with their day."""

CONTENT_FILTERS: Final = (
    text_filter("header, such as X-Team or X-Team: blue", "header"),
    text_filter("filter that the message passes, as of a subscription", "filter"),
    text_filter("idempotency key", "idempotency_key"),
)
"""They reveal something of headers and bodies, so they take the permission to see those."""

STATUS_COLOURS: Final = {
    "PENDING": "info",
    "IN_FLIGHT": "info",
    "HELD": "warning",
    "DELIVERED": "success",
    "REJECTED": "danger",
    "3xxNOTSUPPORTED": "danger",
    "FAILED": "danger",
    "EXPIRED": "warning",
}


class LimitedPaginator(Paginator):  # type: ignore[type-arg]  # no brackets at run time
    """Count rows up to `MAX_COUNTED`: to find one row among a million takes a filter, not a page number."""

    template_name = "delivery/pagination.html"

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, at most `MAX_COUNTED`."""
        rows: Any = self.object_list
        return len(rows.order_by().values_list("pk", flat=True)[:MAX_COUNTED])

    @property
    def is_cut(self) -> bool:
        """Whether there may be more."""
        return self.count >= MAX_COUNTED


class ReadOnlyAdmin(ModelAdmin, Generic[Record]):
    """Pages of a model that is not edited by hand; searched by id."""

    contents: ClassVar[tuple[str, ...]] = ()
    """The fields that show bodies or headers, or reveal something of them: they take a permission of their own."""
    prefetched: ClassVar[tuple[Prefetched[Any, Any], ...]] = ()

    time_column: ClassVar[str] = ""
    """By which a large table can be narrowed to a range of time."""

    class Media:
        js = ("admin/js/jquery.init.js", "broker_project/list_filters.js")

    paginator = LimitedPaginator
    list_filter_submit = True
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    """No list is shown whole: it may have been cut."""
    ordering: ClassVar[tuple[str | OrderBy, ...]] = ("-pk",)
    search_fields: ClassVar[tuple[str, ...]] = ("pk",)
    search_help_text = "An id"
    actions: ClassVar[tuple[str, ...] | None] = None

    has_add_permission = has_change_permission = has_delete_permission = never
    has_replay_permission = permission("delivery.replay")

    own_id = column("ID", lambda row: shown_id(type(row), row.pk), ordering="pk")

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns that the user may see."""
        columns = ["own_id" if one == "id" else one for one in super().get_list_display(request)]
        return columns if may_see_contents(request) else [one for one in columns if one not in self.contents]

    def get_fields(self, request: HttpRequest, obj: Record | None = None) -> tuple[str, ...]:
        """Return the fields that the user may see."""
        fields = tuple("own_id" if one == "id" else one for one in super().get_fields(request, obj))
        if not self.contents or may_see_contents(request):
            return fields
        return (*(name for name in fields if name not in self.contents), "hidden_contents")

    hidden_contents = column(
        "bodies and headers", lambda _: "Not shown: you do not have the permission to see bodies and headers."
    )

    def get_changelist(self, request: HttpRequest, **_: object) -> type[ListPage]:  # noqa: ARG002 - Django's signature
        """Return what reads a page of the list: by its key if that is its order."""
        return KeysetPage if self.is_keyset else ListPage

    @property
    def is_keyset(self) -> bool:
        """Whether the list is in the order of its key and nothing else: it may be of any length."""
        return self.ordering == ("-pk",) and isinstance(self.opts.pk, IntegerField)

    def get_sortable_by(self, request: HttpRequest) -> Any:
        """Return the columns by which the list can be sorted."""
        return () if self.is_keyset else super().get_sortable_by(request)

    def get_list_filter(self, request: HttpRequest) -> list[Any]:
        """Return the filters that the user may use."""
        offered = super().get_list_filter(request)
        hidden = () if may_see_contents(request) else CONTENT_FILTERS
        return [
            *([time_filter(self.time_column)] if self.time_column else ()),
            *(f for f in offered if f not in hidden),
        ]

    def candidates(self, asked: QueryDict) -> Candidates | None:  # noqa: ARG002
        """Return what finds the rows of a filtered list along an index, or more; None: all rows are looked at."""
        return None

    def of_contents(self, asked: QueryDict) -> OfContents | None:  # noqa: ARG002
        """Return how the filters by contents are applied; None without any."""
        return None

    def ids_between(self, begin: dt.datetime | None, end: dt.datetime | None) -> tuple[int, int]:
        """Return the ids that a range of time may have, the first one and the one behind the last."""
        if self.model in WITH_IDS_OF_DAYS:
            return ids_between(self.model._default_manager.all(), self.time_column, begin, end)  # noqa: SLF001
        return 0, MAX_ID

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page of the list without "Show all"."""
        page: ChangeList = super().get_changelist_instance(request)
        page.full_result_count = page.result_count
        self.prefetch(page.result_list)
        return page

    def prefetch(self, rows: Sequence[Record]) -> None:
        """Read what the list shows beyond the model's columns, for all of its rows at once."""
        for one in self.prefetched:
            one.load(rows)

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        queryset: "QuerySet[Record]",
        search_term: str,
    ) -> "tuple[QuerySet[Record], bool]":
        """Return what `search` finds, without duplicates."""
        term = search_term.strip()
        return (self.search(queryset, term) if term else queryset), False

    def search(self, rows: "QuerySet[Record]", term: str) -> "QuerySet[Record]":
        """Return the row of this id, with or without its prefix."""
        term = term.removeprefix(ID_PREFIXES.get(self.model, ""))
        return rows.filter(pk=term) if could_be_of(self.model, term) else rows.none()


def may_see_contents(request: HttpRequest) -> bool:
    """Tell whether the user may see bodies and headers, of messages and of answers."""
    return request.user.has_perm("delivery.view_payload")


def published_by(message: Message) -> str:
    """Return who published a message, as the end of a sentence."""
    if message.publisher_id is None:
        return "with a management key"
    return f"by {message.publisher}" if message.publisher else "by a publisher that was deleted"


def payload_of(message: Message) -> SafeString:
    """Return a message's body as text, cut after `MAX_SHOWN_BYTES`."""
    rest = message.size - MAX_SHOWN_BYTES
    more = f"\n… and {rest} more bytes" if rest > 0 else ""
    return preformatted(text_of(bytes(message.body)[:MAX_SHOWN_BYTES]) + more)


def id_in(asked: QueryDict, name: str) -> int | None:
    """Return the id that an address gives as `name`; None if it gives none that a row could have."""
    return id_of(asked.get(name) or "")


def counted(number: int, limit: int = MAX_COUNTED) -> str:
    """Return a number that is counted up to `limit`."""
    return at_least(number, is_cut=number == limit)


def at_least(number: int, *, is_cut: bool) -> str:
    """Return a number of which there may be more than was counted."""
    return f"{number:,}{' or more' if is_cut else ''}"


def plural(number: int) -> str:
    """Return how many deliveries, such as `1 delivery`."""
    return f"{number} {'delivery' if number == 1 else 'deliveries'}"


def yes_or_no(is_so: bool) -> str:
    """Return a flag in words: the theme's red cross would read as an error."""
    return "yes" if is_so else "no"


def shown_id(model: type[Model], pk: object) -> SafeString:
    """Return an id as it is shown."""
    return copyable(f"{ID_PREFIXES.get(model, '')}{pk}", "id")


def link_to(model: str, pk: object, text: object = None) -> SafeString | str:
    """Return a link to the page of `model`'s row `pk`, with the id as text if none is given; a dash without a row."""
    if not pk:
        return "-"
    shown = shown_id(apps.get_model(model.replace("_", ".")), pk) if text is None else text
    return link(reverse(f"admin:{model}_change", args=[pk]), shown)


def links_to(model: str, ids: Iterable[int]) -> SafeString | str:
    """Return links to several rows, separated by commas; a dash without any."""
    return format_html_join(", ", "{}", ((link_to(model, pk),) for pk in ids)) or "-"


def link_to_list(model: str, text: object, **filters: object) -> SafeString:
    """Return a link to the list of `model`, narrowed by `filters`."""
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    return link(f"{reverse(f'admin:{model}_changelist')}?{query}", text)


def exact(at: dt.datetime | None) -> str:
    """Return an instant as a text; a dash for None."""
    return formats.localize(timezone.localtime(at)) if at else "-"


def subscription_link(subscription: Subscription | None) -> SafeString | str:
    """Return a link to a subscription: its id, subscriber, events, and the host of its endpoint or `mailbox`."""
    if subscription is None:
        return "-"
    host = re.split(r"[/?]", subscription.endpoint.partition("://")[2])[0]
    return link_to(
        "subscriptions_subscription", subscription.pk, f"{subscription.pk}: {subscription}, {host or 'mailbox'}"
    )
