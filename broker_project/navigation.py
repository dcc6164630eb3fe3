"""The side bar of the admin: what happens, then what is configured, then housekeeping and users."""

from typing import Any, Final

from django.http import HttpRequest
from django.urls import reverse

Item = tuple[str, str, str] | tuple[str, str, str, str]
"""A title, an icon, the model as `app.model`, and the name of a page if it is not the list."""

GROUPS: Final[dict[str, tuple[Item, ...]]] = {
    "Delivery": (
        ("Lines", "conveyor_belt", "delivery.line"),
        ("Mailboxes", "markunread_mailbox", "delivery.mailbox"),
        ("Messages", "mail", "delivery.message"),
        ("Search", "search", "delivery.message", "search"),
        ("Deliveries", "local_shipping", "delivery.delivery"),
        ("Dead letters", "unsubscribe", "delivery.deadletter"),
        ("Replays", "replay", "delivery.replay"),
        ("Queue groups", "call_split", "delivery.queuegroup"),
        ("Callbacks", "reply", "delivery.callback"),
        ("Attempts", "swap_horiz", "delivery.attempt"),
        ("Filter lab", "science", "delivery.message", "filter_lab"),
        ("Dry run", "fact_check", "delivery.message", "dry_run"),
    ),
    "Summaries": (
        ("Live numbers", "speed", "analytics.run", "live"),
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
    dashboard = {"title": "Dashboard", "icon": "dashboard", "link": reverse("admin:index")}
    found = [("", [dashboard]), *((title, [_link(*item) for item in items]) for title, items in GROUPS.items())]
    links = [item["link"] for _, items in found for item in items]
    # A page within another's address: without this, unfold marks both.
    here = max((link for link in links if request.path.startswith(link)), key=len, default="")
    return [
        {"title": title, "items": [{**item, "active": item["link"] == here} for item in items]}
        for title, items in found
    ]


def account(_: HttpRequest) -> list[dict[str, str]]:
    """Return the links below a user's name."""
    links = {"Change password": "admin:password_change", "Second factor": "accounts:second-factor"}
    return [{"title": title, "link": reverse(name)} for title, name in links.items()]


def _link(title: str, icon: str, model: str, page: str = "changelist") -> dict[str, Any]:
    app, name = model.split(".")
    return {
        "title": title,
        "icon": icon,
        "link": reverse(f"admin:{app}_{name}_{page}"),
        "permission": lambda request: request.user.has_perm(f"{app}.view_{name}"),
    }
