"""The search box of the side bar: it takes any id or name, and leads to the page of what has it."""

from collections.abc import Iterator
from typing import Any, Final

from django.contrib import admin
from django.db.models import Case, Model, When
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.text import capfirst

from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.admin.theme import link, table
from delivery.admin.read_only import ID_PREFIXES
from delivery.models import Attempt, Callback, Delivery, Message, QueueGroup, Replay
from subscriptions.models import EventType, Publisher, Subscriber, Subscription

PLACES: Final[tuple[type[Model], ...]] = (
    *(Subscriber, EventType, Publisher, Subscription),
    *(Message, Delivery, Attempt, QueueGroup, Callback, Replay),
)
"""What can be found; each is searched as its own list is."""
MAX_OF_EACH: Final = 20


def find(request: HttpRequest) -> HttpResponse:
    """Lead to the one thing that has this id or name; without it, list what has it in part."""
    term = request.GET.get("q", "").replace("\0", "").strip()
    found = [*_found(request, term)] if term else []
    meant = [one for one in found if _is_meant(one[1], term)] or found
    if len(meant) == 1:
        ((of, row),) = meant
        return HttpResponseRedirect(of.change_url(row.pk))
    rows = [[link(of.change_url(row.pk), row), capfirst(str(of.opts.verbose_name))] for of, row in found]
    context = {
        "title": "Find",
        "content_title": "Find",
        "term": term,
        "found": table([], rows) if rows else "",
        "limit": MAX_OF_EACH,
    }
    return TemplateResponse(request, "delivery/found.html", {**admin.site.each_context(request), **context})


def _found(request: HttpRequest, term: str) -> Iterator[tuple[ModelAdmin, Model]]:
    """Return what the user may see that has this in its id or name, with its pages."""
    for model in PLACES:
        pages: Any = admin.site.get_model_admin(model)
        if pages.has_view_permission(request):
            rows, _ = pages.get_search_results(request, model._default_manager.all(), term)  # noqa: SLF001 - documented
            named = "name__iexact" if hasattr(model, "name") else "pk__iexact"
            exact_first = rows.order_by(Case(When(**{named: term}, then=0), default=1), "pk")
            yield from ((pages, row) for row in exact_first[:MAX_OF_EACH])


def _is_meant(row: Model, term: str) -> bool:
    """Return whether it has exactly this id or name."""
    names = {str(row.pk), f"{ID_PREFIXES.get(type(row), '')}{row.pk}", getattr(row, "name", "")}
    return term.casefold() in {name.casefold() for name in names}
