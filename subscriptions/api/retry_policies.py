"""Retry policies: read by every key, configured by management (behaviour 5.1)."""

from typing import ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import StrictModelSerializer
from broker_project.core.api.pagination import Order
from subscriptions import edit
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Resource
from subscriptions.api.visibility import retry_policies_for
from subscriptions.models import ApiKey, RetryPolicy
from subscriptions.retry_policies import TERMS


class RetryPolicySerializer(StrictModelSerializer[RetryPolicy]):
    """A retry policy as the API shows and takes it."""

    class Meta:
        model = RetryPolicy
        fields = ("name", "description", *TERMS, "is_preset", *KEPT_BY_THE_BROKER)
        read_only_fields: ClassVar[tuple[str, ...]] = ("is_preset", *KEPT_BY_THE_BROKER)


class RetryPolicies(Resource[RetryPolicy]):
    """What happens after a delivery has failed."""

    serializer_class = RetryPolicySerializer
    lookup_field = "name"
    lookup_value_converter = "name"
    order = Order("retry policies", "name")

    def visible_to(self, key: ApiKey) -> QuerySet[RetryPolicy]:
        """Return all."""
        return retry_policies_for(key)

    def create(self, request: Request) -> Response:
        """Create one; what is left out is as TeamForge says."""
        return self.created(edit.create(RetryPolicy(**self.valid(request))))
