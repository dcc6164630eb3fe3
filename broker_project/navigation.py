"""The side bar of the admin: what happens, what is set up, what came of it; and, folded up, details and the system.

Its words are those of the models and apps, which the crumbs above a page have too.
"""

from typing import Any, Final

from django.apps import apps
from django.http import HttpRequest
from django.urls import reverse
from django.utils.text import capfirst

from subscriptions.admin import set_up

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
