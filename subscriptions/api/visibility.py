"""Which objects a key can see (behaviour 1.2); whatever it cannot see does not exist for it: 404, never 403."""

from django.db.models import QuerySet

from subscriptions.models import ApiKey, EventType, KeyKind, Publisher, RetryPolicy, Subscriber, Subscription


def event_types_for(_: ApiKey) -> QuerySet[EventType]:
    """Return all: event types are readable by every key."""
    return EventType.objects.all()


def retry_policies_for(_: ApiKey) -> QuerySet[RetryPolicy]:
    """Return all: retry policies are readable by every key."""
    return RetryPolicy.objects.all()


def publishers_for(key: ApiKey) -> QuerySet[Publisher]:
    """Return a publisher's key its own publisher."""
    everything = Publisher.objects.all()
    return everything if _manages(key) else everything.filter(api_keys=key)


def subscribers_for(key: ApiKey) -> QuerySet[Subscriber]:
    """Return a subscriber's key its own subscriber."""
    everything = Subscriber.objects.all()
    return everything if _manages(key) else everything.filter(api_keys=key)


def subscriptions_for(key: ApiKey) -> QuerySet[Subscription]:
    """Return a subscriber's key the subscriptions of its subscriber."""
    everything = Subscription.objects.all()
    return everything if _manages(key) else everything.filter(subscriber__api_keys=key)


def api_keys_for(key: ApiKey) -> QuerySet[ApiKey]:
    """Return keys to management only."""
    return ApiKey.objects.all() if _manages(key) else ApiKey.objects.none()


def _manages(key: ApiKey) -> bool:
    return key.kind == KeyKind.MANAGEMENT
