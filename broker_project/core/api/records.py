"""What views declare: records with their fields, filters and order, and single operations.

Every change over the API is logged as `api.changed`, and is in the history of what was changed. `ETag` and `If-Match`
name the version of a record.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import structlog
from django.db.models import Model, QuerySet
from django.http import HttpResponseBase
from django.utils.http import parse_etags
from drf_spectacular.utils import extend_schema
from rest_framework.parsers import BaseParser
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import BaseSerializer
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from broker_project.core.api.fields import StrictSerializer
from broker_project.core.api.history import write_history
from broker_project.core.api.pagination import Order, Page, PageQuery, Pages, page_of, page_response, query_of

Record = TypeVar("Record", bound=Model)

CHANGED: Final = "broker.changed"
"""Where a request notes the records that it has changed, if its address does not name them, or no longer."""
DRY_RUN: Final = "broker.dry_run"
"""Where a request notes that the caller only asked what it would do."""
_VERSION: Final = re.compile(r"[0-9]{1,19}")

log = structlog.get_logger(__name__)


def valid(serializer_class: type[BaseSerializer[Any]], request: Request, **options: Any) -> dict[str, Any]:
    """Return the body's values, validated."""
    serializer = serializer_class(data=request.data, context={"request": request}, **options)
    serializer.is_valid(raise_exception=True)
    return dict(serializer.validated_data)


def refuse_body(request: Request) -> None:
    """Raise `ValidationError` or `ParseError` for a body with content."""
    valid(StrictSerializer, request)


def etag_of(record: Any) -> str:
    """Return the strong `ETag` of a record's version."""
    return f'"{record.version}"'


def expected_versions(request: Request) -> frozenset[int] | None:
    """Return the versions that `If-Match` names, None if any will do. A tag that is not ours matches nothing."""
    header = request.META.get("HTTP_IF_MATCH")
    if header is None or header.strip() == "*":
        return None
    numbers = (tag.strip('"') for tag in parse_etags(header) if not tag.startswith("W/"))
    return frozenset(int(number) for number in numbers if _VERSION.fullmatch(number))


def note_dry_run(request: Request, asked: Mapping[str, Any]) -> bool:
    """Return whether the caller asks for a dry run, which is not logged as a change."""
    request.META[DRY_RUN] = bool(asked["dry_run"])
    return bool(asked["dry_run"])


class Audited(APIView):
    """A view whose changes are noted: with the key, the address and the names of the fields, not their values."""

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Log the change, if there was one, and write it to the history."""
        answer = super().finalize_response(request, response, *args, **kwargs)
        is_done = answer.status_code < 400  # noqa: PLR2004 - where errors begin
        if is_done and request.method not in SAFE_METHODS and not request.META.get(DRY_RUN):
            key, path = request.auth, request.get_full_path()
            fields = sorted(map(str, request.data if isinstance(request.data, Mapping) else ()))
            created = answer["Location"].rpartition("/")[2] if "Location" in answer else ""
            named = {"created": created} if created else {}
            prefix, label = (getattr(key, name, "") for name in ("prefix", "label"))
            log.info("api.changed", key=prefix, label=label, method=request.method, path=path, fields=fields, **named)
            write_history(
                by=f"{prefix} ({label})" if label else prefix,
                method=str(request.method),
                path=path,
                fields=fields,
                created=created,
                changed=request.META.get(CHANGED),
            )
        return answer


def operation(
    method: str,
    scope: str,
    permission: type[BasePermission],
    *,
    base: type[APIView] = APIView,
    parser_classes: Sequence[type[BaseParser]] = tuple(APIView.parser_classes),
    problems: Sequence[str] = (),
    **schema: Any,
) -> Callable[[Callable[..., Any]], Callable[..., HttpResponseBase]]:
    """Make a view with one method of a function; `schema` is what drf-spectacular's `extend_schema` takes.

    The function's name is the operation id, its docstring the description; `problems` are codes of problems.
    """

    def view_of(act: Callable[..., Any]) -> Callable[..., HttpResponseBase]:
        def handler(_: APIView, request: Request, **address: Any) -> Any:
            return act(request, **address)

        handler.__doc__ = act.__doc__
        members = {
            "__module__": act.__module__,
            "__doc__": act.__doc__,
            "permission_classes": [permission],
            "parser_classes": parser_classes,
            "http_method_names": ["get", "head"] if method == "get" else [method],
            "needs": {method: scope},
            "problems": {method: problems},
            method: extend_schema(operation_id=act.__name__, **schema)(handler),
        }
        view_class: type[APIView] = type(act.__name__, (base,), members)
        return view_class.as_view()

    return view_of


class Records(Audited, GenericViewSet[Record], Generic[Record]):
    """One kind of record: lists and single records for a key, declared by the attributes here."""

    pagination_class = Pages
    http_method_names = ["get", "head"]
    lookup_field = "id"
    lookup_value_converter = "int"
    needs: ClassVar[Mapping[str, str]]
    """The scope that each method takes."""
    problems: ClassVar[Mapping[str, Sequence[str]]] = {}
    """The codes of the problems that only some operations have, by action."""
    visible_to: ClassVar["staticmethod[[Any], QuerySet[Any]] | None"] = None
    """Returns the records that a key can see; None: all of `queryset`."""
    order: ClassVar[Order]
    filters: ClassVar[type[PageQuery]] = PageQuery
    related: ClassVar[tuple[str, ...]] = ()
    """Relations that a list reads along."""
    serializer_classes: ClassVar[Mapping[str, type[BaseSerializer[Any]]]] = {}
    """Serializers of single actions; the others take `serializer_class`."""

    def get_queryset(self) -> QuerySet[Record]:
        """Return the records that the request's key can see."""
        visible_to = type(self).visible_to
        return visible_to(self.request.auth) if visible_to else super().get_queryset()

    def get_serializer_class(self) -> type[BaseSerializer[Record]]:
        """Return the serializer of this action."""
        found: type[BaseSerializer[Record]] = self.serializer_classes.get(self.action) or super().get_serializer_class()
        return found

    def filtered(self, rows: QuerySet[Record], query: Mapping[str, Any]) -> QuerySet[Record]:
        """Return the rows with the values that the list is filtered by."""
        return rows.filter(**{column: value for column, value in query.items() if column not in {"cursor", "limit"}})

    def page(self, query: dict[str, Any]) -> Page[Record]:
        """Return the page of the list that the query asks for."""
        return page_of(self.filtered(self.get_queryset(), query).prefetch_related(*self.related), self.order, query)

    def list(self, request: Request) -> Response:
        """List records; `next` and `previous` are the addresses of the neighbouring pages."""
        page = self.page(query_of(request, self.filters))
        return page_response(request, page, self.shown(page.rows))

    def retrieve(self, request: Request, **_: Any) -> Response:  # noqa: ARG002 - DRF's signature
        """Read a record."""
        (one,) = self.shown([self.get_object()])
        return Response(one)

    def shown(self, rows: Sequence[Record]) -> Any:
        """Return the JSON objects of these rows."""
        return self.get_serializer(rows, many=True).data
