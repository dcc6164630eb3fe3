"""Deliveries and their attempts, to be read: a subscriber's own, or all."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from django.db.models import QuerySet
from rest_framework.serializers import BaseSerializer

from broker_project.core.api.fields import OneOfField, TextField
from broker_project.core.api.pagination import Order, Page, PageQuery, page_of
from broker_project.core.api.query_fields import QueryNumberField
from delivery.api.delivery_documents import DeliverySerializer, WholeDeliverySerializer
from delivery.api.records import Records
from delivery.api.visibility import deliveries_for
from delivery.models import OPEN_SHELF, UNTIL_RELEASED, Delivery, standing
from delivery.status.dead_letters import deliveries_of, in_group
from delivery.status.in_flight import under_way
from delivery.statuses import UNFINISHED, DeliveryStatus
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.models import ApiKey, Subscription

LARGEST_ID: Final = 2**63 - 1
COLUMNS: Final = {
    "subscriber": "subscription__subscriber__name",
    "subscription": "subscription_id",
    "message": "message_id",
}
"""What a list can be filtered by, and where it stands."""
SUBSCRIPTIONS: Final = {"subscriber": "subscriber__name", "subscription": "pk"}
"""What of that narrows it to some subscriptions, and where it stands there."""


class DeliveryQuery(PageQuery):
    """What deliveries can be listed by."""

    status = OneOfField(DeliveryStatus.choices, required=False)
    subscriber = TextField(required=False, help_text="A subscriber's name.")
    subscription = QueryNumberField(required=False, min_value=1, max_value=LARGEST_ID)
    message = QueryNumberField(required=False, min_value=1, max_value=LARGEST_ID)
    group = QueryNumberField(
        required=False, min_value=1, max_value=LARGEST_ID, help_text="A QUEUE group's id, without grp_."
    )


class Deliveries(Records[Delivery]):
    """What is on its way, and what became of it."""

    permission_classes = [MayReceive]
    serializer_class = DeliverySerializer
    query_class = DeliveryQuery
    order = Order("deliveries", descending=True)

    def visible_to(self, key: ApiKey) -> QuerySet[Delivery]:
        """Return management all, a subscriber its own."""
        return deliveries_for(key)

    def filtered(self, rows: QuerySet[Delivery], query: Mapping[str, Any]) -> QuerySet[Delivery]:
        """Return those the query asks for."""
        status = query.get("status")
        if status == DeliveryStatus.HELD:
            rows = rows.filter(due_at=UNTIL_RELEASED)
        if status is not None:
            rows = rows.filter(standing(status))
            # Spares looking on the shelves where there are none.
            rows = rows.filter(closed_on=OPEN_SHELF) if status in UNFINISHED else rows.filter(closed_on__lt=OPEN_SHELF)
        rows = rows.filter(**{column: query[name] for name, column in COLUMNS.items() if name in query})
        return in_group(rows, query["group"]) if "group" in query else rows

    def page(self, query: dict[str, Any]) -> Page[Delivery]:
        """Return the page that the query asks for; what somebody gets is found subscription by subscription."""
        rows, status = self.filtered(self.get_queryset(), query), query.get("status")
        if query.keys() & {"message", "group"}:
            return page_of(rows, self.order, query)
        wanted = self._subscriptions(query)
        if wanted is not None:
            find = partial(deliveries_of, [*wanted.values_list("pk", flat=True)], status)
        elif status == DeliveryStatus.IN_FLIGHT:
            find = partial(under_way, None)
        else:
            return page_of(rows, self.order, query)
        return page_of(rows, self.order, query, lambda rows, stretch: rows.filter(pk__in=find(**asdict(stretch))))

    def _subscriptions(self, query: Mapping[str, Any]) -> QuerySet[Subscription] | None:
        """Return the subscriptions whose deliveries are asked for, None where it is all of them."""
        asked = {SUBSCRIPTIONS[name]: query[name] for name in SUBSCRIPTIONS if name in query}
        if subscriber_id := key_of(self.request).subscriber_id:
            asked["subscriber"] = subscriber_id
        return Subscription.objects.filter(**asked) if asked else None

    def get_serializer_class(self) -> type[BaseSerializer[Delivery]]:
        """Return what a list shows, or a single one."""
        return WholeDeliverySerializer if self.action == "retrieve" else DeliverySerializer
