"""Publishers and retry policies over the API."""

from typing import ClassVar

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import NameField, NamesField, StrictModelSerializer
from broker_project.core.api.pagination import Order
from subscriptions import edit
from subscriptions.api.resources import KEPT_BY_THE_BROKER, Resource
from subscriptions.api.visibility import publishers_for, retry_policies_for
from subscriptions.models import ApiKey, EventType, Publisher, RetryPolicy
from subscriptions.retry_policies import TERMS


class PublisherSerializer(StrictModelSerializer[Publisher]):
    """A publisher as the API shows and takes it."""

    event_types = NamesField(
        child_relation=NameField[EventType](queryset=EventType.objects.all()),
        required=False,
        help_text="The event types it may publish; empty: every one.",
    )

    class Meta:
        model = Publisher
        fields = ("name", "description", "event_types", "max_open_messages", *KEPT_BY_THE_BROKER)
        read_only_fields = KEPT_BY_THE_BROKER


class Publishers(Resource[Publisher]):
    """Who publishes."""

    serializer_class = PublisherSerializer
    lookup_field = "name"
    lookup_value_converter = "name"
    order = Order("publishers", "name")
    related = ("event_types",)

    def visible_to(self, key: ApiKey) -> QuerySet[Publisher]:
        """Return management all, a publisher itself."""
        return publishers_for(key)

    def create(self, request: Request) -> Response:
        """Create one."""
        values = self.valid(request)
        links = {"event_types": values.pop("event_types", [])}
        return self.created(edit.create(Publisher(**values), links=links))


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
