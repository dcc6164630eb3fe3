"""What is configured: one module a model, re-exported here."""

from subscriptions.models.api_keys import ApiKey, KeyKind
from subscriptions.models.event_types import EventKind, EventType
from subscriptions.models.publishers import Publisher
from subscriptions.models.status_changes import StatusChange
from subscriptions.models.subscribers import Status, Subscriber
from subscriptions.models.subscriptions import Subscription

__all__ = [
    "ApiKey",
    "EventKind",
    "EventType",
    "KeyKind",
    "Publisher",
    "Status",
    "StatusChange",
    "Subscriber",
    "Subscription",
]
