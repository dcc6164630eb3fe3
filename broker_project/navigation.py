"""The side bar of the admin: what happens, what is set up, what came of it; folded up, details and the system; and its
search box.

Its words are those of the models and apps, which the crumbs above a page have too.
"""

from collections.abc import Iterator
from typing import Any, Final

from django.apps import apps
from django.contrib import admin
from django.db.models import Case, Model, When
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import capfirst

from broker_project.core.admin.model_admin import ModelAdmin
from broker_project.core.admin.theme import link, table
from delivery.admin.read_only import ID_PREFIXES
from delivery.models import Attempt, Callback, Delivery, Message, QueueGroup, Replay
from subscriptions.admin import set_up
from subscriptions.models import EventType, Publisher, Subscriber, Subscription

Item = tuple[str, ...]
"""An icon, the model as `app.model`; of a page that is not the model's list its name, title and further permissions."""

GROUPS: Final[dict[str, tuple[Item, ...]]] = {
    "Traffic": (
        ("mail", "delivery.message"),
        ("local_shipping", "delivery.delivery"),
        ("unsubscribe", "delivery.deadletter"),
        ("markunread_mailbox", "delivery.mailbox"),
    ),
    "Set-up": (
        ("rocket_launch", "subscriptions.subscription", "set_up", "Set up a webhook", *set_up.NEEDED),
        ("inbox", "subscriptions.subscriber"),
        ("link", "subscriptions.subscription"),
        ("category", "subscriptions.eventtype"),
        ("campaign", "subscriptions.publisher"),
        ("key", "subscriptions.apikey"),
    ),
    "Reports": (
        ("speed", "analytics.run", "live", "Live numbers", "delivery.view_line"),
        ("monitoring", "analytics.run", "overview", "Summaries"),
    ),
}
FOLDED_UP: Final[dict[str, tuple[Item, ...]]] = {
    "Details": (
        ("replay", "delivery.replay"),
        ("autorenew", "subscriptions.retrypolicy"),
        ("conveyor_belt", "delivery.line"),
        ("swap_horiz", "delivery.attempt"),
        ("call_split", "delivery.queuegroup"),
        ("reply", "delivery.callback"),
        ("history", "delivery.lineevent"),
        ("air", "delivery.volatilecount"),
        ("science", "delivery.message", "filter_lab", "Filter lab"),
        ("fact_check", "delivery.message", "dry_run", "Dry run"),
    ),
    "System": (
        ("play_circle", "analytics.run"),
        ("schedule", "django_celery_beat.periodictask"),
        ("timer", "django_celery_beat.intervalschedule"),
        ("calendar_clock", "django_celery_beat.crontabschedule"),
        ("event", "django_celery_beat.clockedschedule"),
        ("notifications", "delivery.announcement"),
        ("content_copy", "delivery.idempotencykey"),
        ("calendar_month", "delivery.storageday"),
        ("person", "auth.user"),
        ("group", "auth.group"),
        ("manage_history", "accounts.change"),
        ("lock_clock", "accounts.failedlogin"),
    ),
}


def groups(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the groups as unfold wants them; it leaves out what the user may not view."""
    dashboard = {"title": "Dashboard", "icon": "dashboard", "link": reverse("admin:index")}
    found = [("", [dashboard])]
    found += [(title, [_link(*item) for item in items]) for title, items in {**GROUPS, **FOLDED_UP}.items()]
    links = [item["link"] for _, items in found for item in items]
    # A page within another's address: without this, unfold marks both.
    here = max((link for link in links if request.path.startswith(link)), key=len, default="")
    return [
        {
            "title": title,
            "collapsible": title in FOLDED_UP,
            "items": [{**item, "active": item["link"] == here} for item in items],
        }
        for title, items in found
    ]


def account(_: HttpRequest) -> list[dict[str, str]]:
    """Return the links below a user's name."""
    links = {"Change password": "admin:password_change", "Second factor": "accounts:second-factor"}
    return [{"title": title, "link": reverse(name)} for title, name in links.items()]


def _link(icon: str, model: str, page: str = "changelist", title: str = "", *needed: str) -> dict[str, Any]:
    app, name = model.split(".")
    return {
        "title": title or capfirst(str(apps.get_model(model)._meta.verbose_name_plural)),  # noqa: SLF001 - documented
        "icon": icon,
        "link": reverse(f"admin:{app}_{name}_{page}"),
        "permission": lambda request: request.user.has_perms([f"{app}.view_{name}", *needed]),
    }


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
    return TemplateResponse(request, "broker_project/found.html", {**admin.site.each_context(request), **context})


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
