"""What the API answers, for people: words of states, times, shares."""

from typing import Final

from django import template
from django.db.models import Choices
from django.utils.dateparse import parse_datetime

from broker_project.core.admin.theme import relative
from delivery.models import ReplayState
from delivery.statuses import DeliveryStatus
from subscriptions.models import Status

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
def moment(text: str | None) -> str:
    """Return how long ago or ahead a time is; a dash for none."""
    return relative(parse_datetime(text) if text else None)


@register.filter
def percent(share: float | None) -> str:
    """Return a share of 1 in percent; a dash for none."""
    return "-" if share is None else f"{share * 100:.2f} %"
