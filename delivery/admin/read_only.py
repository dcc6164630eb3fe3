"""What all pages about big tables have in common: nothing is edited, nothing is counted to the end."""

import datetime as dt
import re
from typing import ClassVar, Final, Generic, TypeVar

from django.contrib.admin import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.db.models.expressions import OrderBy
from django.http import HttpRequest
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.functional import cached_property
from django.utils.safestring import SafeString

from broker_project.core.admin.row_ids import could_be_of
from broker_project.core.admin.theme import ModelAdmin, label, link
from delivery.status.line_status import MAX_COUNTED
from subscriptions.models import Subscription

Record = TypeVar("Record", bound=Model)

MAX_SHOWN: Final = 100
"""How many rows a table within a page has."""

MAX_ID_DIGITS: Final = 18

MAILBOX: Final = "mailbox"
"""Where what is fetched goes, instead of to an endpoint."""

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
    """Counts no further than `MAX_COUNTED`: whoever looks for one of a million rows needs a filter, not a page."""

    template_name = "delivery/pagination.html"

    @cached_property
    def count(self) -> int:
        """Return how many rows there are, at most `MAX_COUNTED`."""
        rows = self.object_list
        if not isinstance(rows, QuerySet):
            return len(rows)
        return len(rows.order_by().values_list("pk", flat=True)[:MAX_COUNTED])

    @property
    def is_cut(self) -> bool:
        """Whether there may be more."""
        return self.count >= MAX_COUNTED


class ReadOnlyAdmin(ModelAdmin, Generic[Record]):
    """One model to look at; searched by id only."""

    paginator = LimitedPaginator
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 0
    """No list is shown whole: it may have been cut."""
    ordering: ClassVar[tuple[str | OrderBy, ...]] = ("-pk",)
    search_fields: ClassVar[tuple[str, ...]] = ("pk",)
    search_help_text = "An id"
    actions: ClassVar[tuple[str, ...] | None] = None

    def has_add_permission(self, request: HttpRequest, obj: object = None) -> bool:  # noqa: ARG002 - Django's signature
        """Nothing is added by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:  # noqa: ARG002
        """Nothing is changed by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Record | None = None) -> bool:  # noqa: ARG002
        """Nothing is deleted by hand."""
        return False

    def get_changelist_instance(self, request: HttpRequest) -> ChangeList:
        """Return a page that offers no "Show all"."""
        page: ChangeList = super().get_changelist_instance(request)
        page.full_result_count = page.result_count
        return page

    def get_search_results(
        self,
        request: HttpRequest,  # noqa: ARG002 - Django's signature
        queryset: QuerySet[Record],
        search_term: str,
    ) -> tuple[QuerySet[Record], bool]:
        """Return the row of that id."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(pk=term) if could_be_of(self.model, term) else queryset.none(), False


def is_id(text: str) -> bool:
    """Tell whether a row could have this id."""
    return text.isascii() and text.isdigit() and len(text) <= MAX_ID_DIGITS


def status_badge(status: str) -> SafeString:
    """Return a delivery's status as lists show it."""
    return label(status, STATUS_COLOURS.get(status, ""))


def yes_or_no(is_so: bool) -> str:
    """Return a flag in words: that something is not so is no error."""
    return "yes" if is_so else "no"


def link_to(model: str, pk: object, text: object) -> SafeString | str:
    """Return a link to the page of `model`'s row `pk`, a dash without one."""
    return link(reverse(f"admin:{model}_change", args=[pk]), text) if pk else "-"


def link_to_list(model: str, text: object, **filters: object) -> SafeString:
    """Return a link to the list of `model`, narrowed by `filters`."""
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    return link(f"{reverse(f'admin:{model}_changelist')}?{query}", text)


def instant(at: dt.datetime | None) -> str:
    """Return an instant as lists show it, on pages too; a dash for none."""
    return formats.localize(timezone.localtime(at)) if at else "-"


def subscription_link(subscription: Subscription | None) -> SafeString | str:
    """Return a link to a subscription that tells it from its like: whose, for what, and where it goes if it is sent."""
    if subscription is None:
        return "-"
    host = re.split(r"[/?]", subscription.endpoint.partition("://")[2])[0]
    return link_to(
        "subscriptions_subscription", subscription.pk, f"{subscription.pk}: {subscription}, {host or MAILBOX}"
    )
