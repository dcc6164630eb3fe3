"""What a replay or backfill is of, in words and links."""

from typing import Final

from django.utils.dateparse import parse_datetime
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from broker_project.core.admin.read_only import instant, link_to, subscription_link
from broker_project.core.admin.theme import table
from delivery.models import Replay
from subscriptions.models import EventType, Subscriber, Subscription

SHOWN_AT_MOST: Final = 20
MOMENTS: Final = ("from", "to", "since")


def selection_table(replay: Replay) -> SafeString:
    """Return what was asked for; what is gone meanwhile is left out."""
    asked = replay.selection
    found = {
        "subscriber": _link(Subscriber, asked.get("subscriber")),
        "subscriptions": _links(asked.get("subscriptions", [])),
        "event type": _link(EventType, asked.get("event_type")),
        "statuses": ", ".join(asked.get("statuses", [])),
        **{name: instant(parse_datetime(asked[name])) for name in MOMENTS if asked.get(name)},
    }
    return table([], [(name, value) for name, value in found.items() if value])


def _link(model: type[Subscriber] | type[EventType], pk: int | None) -> SafeString | str:
    found = model.objects.filter(pk=pk or 0).first()
    return link_to(f"subscriptions_{model._meta.model_name}", found.pk, found) if found else ""  # noqa: SLF001


def _links(ids: list[int]) -> SafeString:
    found = Subscription.objects.filter(pk__in=ids[:SHOWN_AT_MOST]).select_related("subscriber", "event_type")
    shown: list[object] = [subscription_link(one) for one in found.order_by("pk")]
    if len(ids) > SHOWN_AT_MOST:
        shown.append(f"and {len(ids) - SHOWN_AT_MOST} more")
    return format_html_join("", "<div>{}</div>", zip(shown, strict=True))
