"""Install retry policies and the broker's own event types."""

from dataclasses import asdict
from typing import Final

from django.apps.registry import Apps

from subscriptions.names import OWN_EVENTS
from subscriptions.retry_policies import PRESETS

DESCRIPTIONS: Final = {
    "TeamForge": "Never gives up. No answer and 503 hold the line; other 5xx let the next one pass; the rest ends.",
    "Workfront": "Whatever fails is tried again apart, twelve times, ten minutes from one to the next.",
    "webMethods": "No answer and 503 hold the line for five retries, ten seconds from one to the next; the rest ends.",
    "Standard-Webhooks": "Tried again apart, eight times in 75 hours, ever more rarely; redirects and most 4xx end.",
}
"""Of the retry policies, in a sentence or two each."""
OWN_EVENT_TYPES: Final = {
    "Delivery.Rejected": "A delivery has ended REJECTED.",
    "Delivery.Failed": "A delivery has ended FAILED.",
    "Line.Paused": "A line has been held for over a minute, or a subscription is suspended or paused by hand.",
    "Line.Resumed": "It goes on.",
}
"""The event types of what the broker publishes of its own accord, by what follows `OWN_EVENTS` (contract 5.7)."""


def install(models: Apps) -> None:
    """Store what is missing of it, with `models` as they are at that time; what is there stays as it is."""
    policy, event_type = (models.get_model("subscriptions", name) for name in ("RetryPolicy", "EventType"))
    presets = [
        policy(name=name, description=DESCRIPTIONS[name], is_preset=True, **asdict(terms))
        for name, terms in PRESETS.items()
    ]
    policy._default_manager.bulk_create(presets, ignore_conflicts=True)  # noqa: SLF001 - documented by Django
    own = [event_type(name=OWN_EVENTS + name, description=text) for name, text in OWN_EVENT_TYPES.items()]
    event_type._default_manager.bulk_create(own, ignore_conflicts=True)  # noqa: SLF001 - documented by Django
