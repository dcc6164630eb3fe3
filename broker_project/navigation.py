"""The admin's side bar: first what one looks at, then what one sets up, then people."""

from collections.abc import Callable
from typing import Any, Final

from django.http import HttpRequest
from django.urls import reverse

Item = tuple[str, str, str] | tuple[str, str, str, str]
"""What it is called, its icon, the model as `app.model`, and which of its pages if not the list."""

GROUPS: Final[dict[str, tuple[Item, ...]]] = {
    "Delivery": (
        ("Lines", "conveyor_belt", "delivery.line"),
        ("Mailboxes", "markunread_mailbox", "delivery.mailbox"),
        ("Messages", "mail", "delivery.message"),
        ("Deliveries", "local_shipping", "delivery.delivery"),
        ("Dead letters", "unsubscribe", "delivery.deadletter"),
        ("Replays", "replay", "delivery.replay"),
        ("Queue groups", "call_split", "delivery.queuegroup"),
        ("Callbacks", "reply", "delivery.callback"),
        ("Attempts", "swap_horiz", "delivery.attempt"),
        ("Filter lab", "science", "delivery.message", "filter_lab"),
    ),
    "Summaries": (
        ("Summaries", "monitoring", "analytics.run", "overview"),
        ("Runs", "play_circle", "analytics.run"),
    ),
    "Configuration": (
        ("Subscribers", "inbox", "subscriptions.subscriber"),
        ("Subscriptions", "link", "subscriptions.subscription"),
        ("Retry policies", "autorenew", "subscriptions.retrypolicy"),
        ("Event types", "category", "subscriptions.eventtype"),
        ("Publishers", "campaign", "subscriptions.publisher"),
        ("API keys", "key", "subscriptions.apikey"),
    ),
    "Schedules": (
        ("Periodic tasks", "schedule", "django_celery_beat.periodictask"),
        ("Intervals", "timer", "django_celery_beat.intervalschedule"),
        ("Crontabs", "calendar_clock", "django_celery_beat.crontabschedule"),
        ("Once", "event", "django_celery_beat.clockedschedule"),
    ),
    "Housekeeping": (
        ("Line history", "history", "delivery.lineevent"),
        ("Announcements", "notifications", "delivery.announcement"),
        ("Volatile counts", "air", "delivery.volatilecount"),
        ("Idempotency keys", "content_copy", "delivery.idempotencykey"),
        ("Storage days", "calendar_month", "delivery.storageday"),
        ("Users", "person", "auth.user"),
        ("Failed logins", "lock_clock", "accounts.failedlogin"),
        ("Groups", "group", "auth.group"),
    ),
}


def groups(request: HttpRequest) -> list[dict[str, Any]]:
    """Return the groups as unfold wants them; it leaves out what the user may not view."""
    links = [_address(*where) for items in GROUPS.values() for _, _, *where in items]
    # Of pages within pages the innermost: left to itself unfold marks the outer ones too.
    here = max((link for link in links if request.path.startswith(link)), key=len, default="")
    return [{"title": title, "items": [_link(here, *item) for item in items]} for title, items in GROUPS.items()]


def account(_: HttpRequest) -> list[dict[str, str]]:
    """Return what a person finds below their name."""
    links = {"Change password": "admin:password_change", "Second factor": "accounts:second-factor"}
    return [{"title": title, "link": reverse(name)} for title, name in links.items()]


def _link(here: str, title: str, icon: str, model: str, page: str = "changelist") -> dict[str, Any]:
    app, name = model.split(".")
    link = _address(model, page)
    return {
        "title": title,
        "icon": icon,
        "link": link,
        "active": link == here,
        "permission": _may_view(f"{app}.view_{name}"),
    }


def _address(model: str, page: str = "changelist") -> str:
    app, name = model.split(".")
    return reverse(f"admin:{app}_{name}_{page}")


def _may_view(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: request.user.has_perm(permission)
