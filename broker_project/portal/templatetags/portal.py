"""What the API answers, for people: words of states, times, shares."""

from typing import Final

from django import template
from django.db.models import Choices
from django.utils.dateparse import parse_datetime

from broker_project.core.admin.theme import relative
from delivery.models import ReplayState
from delivery.statuses import DeliveryStatus
from subscriptions.models import Status

MAX_MILLISECONDS: Final = 1000
"""Longer times are shown in seconds."""

register = template.Library()

STATES: Final[dict[str, type[Choices]]] = {
    "delivery": DeliveryStatus,
    "replay": ReplayState,
    "subscription": Status,
}


@register.filter
def state(name: str, of: str) -> str:
    """Return the word by which people read the state of a delivery, replay or subscription."""
    return str(STATES[of](name).label)


@register.filter
def hint(status: str) -> str:
    """Return what people may ask about the status of a delivery."""
    return DeliveryStatus(status).hint


@register.filter
def moment(text: str | None) -> str:
    """Return how long ago or ahead a time is; a dash for none."""
    return relative(parse_datetime(text) if text else None)


@register.filter
def percent(share: float | None) -> str:
    """Return a share of 1 in percent; a dash for none."""
    return "-" if share is None else f"{share * 100:.2f} %"


@register.filter
def duration(milliseconds: float | None) -> str:
    """Return a time, from a second on in seconds; a dash for none."""
    if milliseconds is None:
        return "-"
    return f"{milliseconds:.0f} ms" if milliseconds < MAX_MILLISECONDS else f"{milliseconds / 1000:.1f} s"
