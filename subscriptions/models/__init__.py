"""The configuration: one module an aggregate, re-exported here; `base` has what they share."""

from subscriptions.credentials.scopes import KeyKind as KeyKind
from subscriptions.credentials.scopes import Scope as Scope
from subscriptions.models.api_keys import ApiKey as ApiKey
from subscriptions.models.api_keys import FormerSecret as FormerSecret
from subscriptions.models.event_types import EventKind as EventKind
from subscriptions.models.event_types import EventType as EventType
from subscriptions.models.event_types import Publisher as Publisher
from subscriptions.models.retry_policies import RetryPolicy as RetryPolicy
from subscriptions.models.subscribers import FormerDestination as FormerDestination
from subscriptions.models.subscribers import Processing as Processing
from subscriptions.models.subscribers import Status as Status
from subscriptions.models.subscribers import StatusChange as StatusChange
from subscriptions.models.subscribers import Subscriber as Subscriber
from subscriptions.models.subscriptions import DeliveryMode as DeliveryMode
from subscriptions.models.subscriptions import PausedBy as PausedBy
from subscriptions.models.subscriptions import Subscription as Subscription
