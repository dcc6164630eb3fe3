"""Install the preset retry policies and the broker's own event types."""

from dataclasses import asdict
from typing import Final

from django.apps.registry import Apps

from subscriptions.names import OWN_EVENTS
from subscriptions.retry_policies import PRESETS

PRESET_DESCRIPTIONS: Final = {
    "TeamForge": "Never gives up. No answer and 503 hold the line; other 5xx are deferred; the rest ends.",
    "Workfront": "Failures are retried in the retry line, twelve times, ten minutes apart.",
    "webMethods": "No answer and 503 hold the line for five retries, ten seconds apart; the rest ends.",
    "Standard-Webhooks": "Retried in the retry line, eight times in 75 hours, ever later; redirects and most 4xx end.",
}
OWN_EVENT_TYPES: Final = {
    "Delivery.Rejected": "A delivery has ended REJECTED.",
    "Delivery.Failed": "A delivery has ended FAILED.",
    "Line.Paused": "A line has been held for over a minute, or a subscription is suspended or paused by hand.",
    "Line.Resumed": "The line goes on.",
    "Alert.Firing": "Something needs attention, as the dashboard shows.",
    "Alert.Resolved": "That is over.",
}
"""The descriptions of the events that the broker publishes itself, by name after `OWN_EVENTS` (contract 5.7)."""


def install(models: Apps) -> None:
    """Create those that are missing, with the `models` of a migration; existing ones stay as they are."""
    policy, event_type = (models.get_model("subscriptions", name) for name in ("RetryPolicy", "EventType"))
    presets = [
        policy(name=name, description=PRESET_DESCRIPTIONS[name], is_preset=True, **asdict(terms))
        for name, terms in PRESETS.items()
    ]
    policy._default_manager.bulk_create(presets, ignore_conflicts=True)  # noqa: SLF001 - documented by Django
    own = [event_type(name=OWN_EVENTS + name, description=text) for name, text in OWN_EVENT_TYPES.items()]
    event_type._default_manager.bulk_create(own, ignore_conflicts=True)  # noqa: SLF001 - documented by Django
