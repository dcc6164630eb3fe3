"""Fields that name what the key can see; anything else does not exist for it (behaviour 1.2)."""

from typing import Any, Final

from django.db.models import QuerySet
from rest_framework import serializers

from broker_project.core.api.fields import NameField, WholeNumberField
from subscriptions.api.permissions import key_of
from subscriptions.api.visibility import subscribers_for, subscriptions_for
from subscriptions.models import Subscriber, Subscription

LARGEST_ID: Final = 2**63 - 1


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
