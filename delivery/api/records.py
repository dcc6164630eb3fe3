"""Read-only lists and records, and which of them a key can see (contract 1.2)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from django.db.models import Model, QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from broker_project.core.api.pagination import Order, Page, PageQuery, Pages, page_of, page_response, query_of
from delivery.models import Delivery
from subscriptions.api.permissions import Needs, key_of
from subscriptions.models import ApiKey, KeyKind, Scope

Record = TypeVar("Record", bound=Model)


class Records(GenericViewSet[Record], Generic[Record]):
    """One kind of record that nobody edits."""

    pagination_class = Pages
    http_method_names = ["get", "head"]
    needs: ClassVar[Needs] = {"get": Scope.READ}
    lookup_field = "id"
    order: ClassVar[Order]
    query_class: ClassVar[type[PageQuery]] = PageQuery

    def visible_to(self, key: ApiKey) -> QuerySet[Record]:
        """Return what `key` can see; each kind of record says."""
        raise NotImplementedError

    def filtered(self, rows: QuerySet[Record], query: Mapping[str, Any]) -> QuerySet[Record]:
        """Return the rows that the list's own query parameters keep."""
        raise NotImplementedError

    def page(self, query: dict[str, Any]) -> Page[Record]:
        """Return the page of the list that the query asks for."""
        return page_of(self.filtered(self.get_queryset(), query), self.order, query)

    def get_queryset(self) -> QuerySet[Record]:
        """Return what the request's key can see."""
        return self.visible_to(key_of(self.request))

    def list(self, request: Request) -> Response:
        """List them, a page at a time, newest first."""
        query = query_of(request, self.query_class)
        page = self.page(query)
        return page_response(request, page, self.get_serializer(page.rows, many=True).data)

    def retrieve(self, request: Request, **_: Any) -> Response:  # noqa: ARG002 - DRF's signature
        """Read one."""
        return Response(self.get_serializer(self.get_object()).data)


def deliveries_for(key: ApiKey) -> QuerySet[Delivery]:
    """Return what the key can see: management all, a subscriber its own."""
    deliveries = Delivery.objects.select_related("subscription__subscriber", "line")
    return (
        deliveries if key.kind == KeyKind.MANAGEMENT else deliveries.filter(subscription__subscriber=key.subscriber_id)
    )
