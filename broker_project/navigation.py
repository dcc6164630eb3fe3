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
        ("Messages", "mail", "delivery.message"),
        ("Deliveries", "local_shipping", "delivery.delivery"),
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
        ("Idempotency keys", "content_copy", "delivery.idempotencykey"),
        ("Storage days", "calendar_month", "delivery.storageday"),
        ("Users", "person", "auth.user"),
        ("Groups", "group", "auth.group"),
    ),
}


def groups(request: HttpRequest) -> list[dict[str, Any]]:  # noqa: ARG001 - unfold's signature
    """Return the groups as unfold wants them; it leaves out what the user may not view."""
    return [{"title": title, "items": [_link(*item) for item in items]} for title, items in GROUPS.items()]


def _link(title: str, icon: str, model: str, page: str = "changelist") -> dict[str, Any]:
    app, name = model.split(".")
    return {
        "title": title,
        "icon": icon,
        "link": reverse(f"admin:{app}_{name}_{page}"),
        "permission": _may_view(f"{app}.view_{name}"),
    }


def _may_view(permission: str) -> Callable[[HttpRequest], bool]:
    return lambda request: request.user.has_perm(permission)
