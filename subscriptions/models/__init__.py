"""What is configured: one module a model, re-exported here."""

from subscriptions.credentials.scopes import KeyKind, Scope
from subscriptions.models.api_keys import ApiKey
from subscriptions.models.event_types import EventKind, EventType
from subscriptions.models.former_secrets import FormerSecret
from subscriptions.models.pausable import PausedBy
from subscriptions.models.publishers import Publisher
from subscriptions.models.retry_policies import RetryPolicy
from subscriptions.models.sent import DeliveryMode
from subscriptions.models.status_changes import StatusChange
from subscriptions.models.subscribers import Processing, Status, Subscriber
from subscriptions.models.subscriptions import Subscription

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
