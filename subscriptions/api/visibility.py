"""Which objects a key can see; anything else does not exist for it (contract 1.2)."""

from typing import Any, Final

from django.db.models import QuerySet
from rest_framework import serializers

from broker_project.core.api.fields import NameField, WholeNumberField
from subscriptions.api.permissions import key_of
from subscriptions.models import ApiKey, EventType, KeyKind, Publisher, RetryPolicy, Subscriber, Subscription

LARGEST_ID: Final = 2**63 - 1


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


class OwnSubscriberField(NameField[Subscriber]):
    """A subscriber, by its name."""

    def get_queryset(self) -> QuerySet[Subscriber]:
        """Return those the request's key can see."""
        return subscribers_for(key_of(self.context["request"]))


class OwnSubscriptionField(serializers.PrimaryKeyRelatedField[Subscription]):
    """A subscription, by its id."""

    def __init__(self, **options: Any) -> None:
        number = WholeNumberField(min_value=1, max_value=LARGEST_ID)
        super().__init__(pk_field=number, queryset=Subscription.objects.all(), **options)

    def get_queryset(self) -> QuerySet[Subscription]:
        """Return those the request's key can see."""
        return subscriptions_for(key_of(self.context["request"]))
