"""The configuration: one module an aggregate, re-exported here; `base` has what they share."""

from subscriptions.credentials.scopes import KeyKind, Scope
from subscriptions.models.api_keys import ApiKey, FormerSecret
from subscriptions.models.event_types import EventKind, EventType, Publisher
from subscriptions.models.retry_policies import RetryPolicy
from subscriptions.models.subscribers import Processing, Status, StatusChange, Subscriber
from subscriptions.models.subscriptions import DeliveryMode, PausedBy, Subscription

__all__ = [
    "ApiKey",
    "DeliveryMode",
    "EventKind",
    "EventType",
    "FormerSecret",
    "KeyKind",
    "PausedBy",
    "Processing",
    "Publisher",
    "RetryPolicy",
    "Scope",
    "Status",
    "StatusChange",
    "Subscriber",
    "Subscription",
]
