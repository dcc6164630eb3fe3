"""What all resources share: list, create, read, change by version, delete, and an audit log entry."""

from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

import structlog
from django.core.exceptions import ObjectDoesNotExist
from django.db.models import QuerySet
from rest_framework import status
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import Serializer
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet

from broker_project.core.api.fields import StrictSerializer
from broker_project.core.api.pagination import Order, PageQuery, Pages, page_of, page_response, query_of
from broker_project.core.api.parsing import refuse_unmeasured
from broker_project.core.api.problems import UNKNOWN, ProblemType, register
from subscriptions import edit
from subscriptions.api.permissions import Needs, check_scope, key_of, kinds_taken
from subscriptions.api.preconditions import etag_of, expected_versions
from subscriptions.models import ApiKey, KeyKind, Scope
from subscriptions.models.base import Versioned

Record = TypeVar("Record", bound=Versioned)

KEPT_BY_THE_BROKER = ("version", "created_at", "updated_at")
"""Fields of every resource that nobody can set."""

log = structlog.get_logger(__name__)

register(
    {
        edit.NameTaken: ProblemType(409, "name_taken", "Name taken"),
        edit.IsPreset: ProblemType(409, "preset", "Came installed"),
        edit.VersionMismatch: ProblemType(412, "version_mismatch", "Changed meanwhile"),
        edit.StillInUse: ProblemType(409, "still_in_use", "Still in use"),
        ObjectDoesNotExist: UNKNOWN,
    }
)


class Nothing(StrictSerializer):
    """The body of an action that takes none."""


def refuse_body(request: Request) -> None:
    """Raise `ValidationError` or `ParseError` for a body that says anything: its sender means something by it."""
    Nothing(data=request.data).is_valid(raise_exception=True)


class ReadOrWrite(BasePermission):
    """Every key reads what it can see, the view's `writers` change it; what is unseen is 404 before it is 403."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Tell whether there is a key; raise `PermissionDenied` where it may not use the view at all."""
        key = request.auth
        if not isinstance(key, ApiKey):
            return False
        if view.action == "create":
            check_kind(key, view)
        check_scope(key, request, view)
        return True

    def has_object_permission(self, request: Request, view: Any, obj: Versioned) -> bool:  # noqa: ARG002 - DRF's signature
        """Let the key do this with what it can see; raise `PermissionDenied` where others change it."""
        if view.action != "retrieve":
            check_kind(key_of(request), view)
        return True


def check_kind(key: ApiKey, view: Any) -> None:
    """Raise `PermissionDenied`, which says whose keys do, where those of this kind change nothing."""
    if key.kind not in view.writers:
        raise PermissionDenied(kinds_taken(view.writers))


class Noted(APIView):
    """A view whose changes are told: of every call that changes what is configured, or steps in."""

    is_dry_run = False
    """Whether the call was only asked what it would do."""

    def note_dry_run(self, asked: Mapping[str, Any]) -> bool:
        """Return whether that is all that was asked; it is not told."""
        self.is_dry_run = bool(asked["dry_run"])
        return self.is_dry_run

    def finalize_response(self, request: Request, response: Response, *args: Any, **kwargs: Any) -> Response:
        """Tell of what was done, once it is done."""
        answer = super().finalize_response(request, response, *args, **kwargs)
        is_done = answer.status_code < 400  # noqa: PLR2004 - where errors begin
        if is_done and request.method not in SAFE_METHODS and not self.is_dry_run:
            _tell(request, answer)
        return answer


class Resource(Noted, GenericViewSet[Record], Generic[Record]):
    """One kind of configured record under `/api/v1/`; answers carry its version as `ETag`."""

    permission_classes = [ReadOrWrite]
    pagination_class = Pages
    http_method_names = ["get", "head", "post", "patch", "delete"]
    needs: ClassVar[Needs] = {"get": Scope.READ, **dict.fromkeys(("post", "patch", "delete"), Scope.CONFIGURE)}
    writers: ClassVar[frozenset[KeyKind]] = frozenset({KeyKind.MANAGEMENT})
    order: ClassVar[Order]
    query_class: ClassVar[type[PageQuery]] = PageQuery
    related: ClassVar[tuple[str, ...]] = ()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse who may not call, and a body nobody can read."""
        super().initial(request, *args, **kwargs)
        refuse_unmeasured(request)

    def visible_to(self, key: ApiKey) -> QuerySet[Record]:
        """Return what `key` can see; each resource says."""
        raise NotImplementedError

    def get_queryset(self) -> QuerySet[Record]:
        """Return what the request's key can see."""
        return self.visible_to(key_of(self.request))

    def list(self, request: Request) -> Response:
        """List them, a page at a time."""
        query = query_of(request, self.query_class)
        page = page_of(self.filtered(self.get_queryset().prefetch_related(*self.related), query), self.order, query)
        return page_response(request, page, self.get_serializer(page.rows, many=True).data)

    def retrieve(self, request: Request, **_: Any) -> Response:  # noqa: ARG002 - DRF's signature
        """Read one."""
        return self.answer(self.get_object())

    def partial_update(self, request: Request, **_: Any) -> Response:
        """Change what is given of one, if `If-Match` still holds."""
        changes = self.valid(request, partial=True)
        return self.answer(edit.change(self.which(), changes=changes, expected=expected_versions(request)))

    def destroy(self, request: Request, **_: Any) -> Response:
        """Delete one, if `If-Match` still holds and nothing needs it."""
        refuse_body(request)
        edit.remove(self.which(), expected=expected_versions(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def filtered(self, rows: QuerySet[Record], query: Mapping[str, Any]) -> QuerySet[Record]:  # noqa: ARG002 - for subclasses
        """Return the rows that the list's own query parameters keep."""
        return rows

    def which(self) -> QuerySet[Record]:
        """Return the one record of the address, which the key can see and change, for a use case to lock."""
        return self.get_queryset().filter(pk=self.get_object().pk)

    def valid(
        self, request: Request, *, partial: bool = False, by: type[Serializer[Any]] | None = None
    ) -> dict[str, Any]:
        """Return the body's values, validated."""
        serializer = (by or self.get_serializer_class())(
            data=request.data, partial=partial, context=self.get_serializer_context()
        )
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def change_by_action(self, request: Request, changes: Mapping[str, object]) -> Response:
        """Make a fixed change, as `activate` does; the body must be empty."""
        refuse_body(request)
        return self.answer(edit.change(self.which(), changes=changes, expected=expected_versions(request)))

    def created(self, record: Record, **shown_once: str) -> Response:
        """Return the answer to a creation, with its address."""
        value = getattr(record, self.lookup_field)
        location = f"{self.request.path}/{value}"
        return self.answer(record, status.HTTP_201_CREATED, {"Location": location}, **shown_once)

    def answer(
        self,
        record: Record,
        code: int = status.HTTP_200_OK,
        headers: Mapping[str, str] | None = None,
        **shown_once: str,
    ) -> Response:
        """Return the record as it is now, with its `ETag` and what is shown only this once."""
        data = {**self.get_serializer(record).data, **shown_once}
        kept_nowhere = {"Cache-Control": "no-store"} if shown_once else {}
        return Response(data, code, headers={"ETag": etag_of(record), **kept_nowhere, **(headers or {})})


def _tell(request: Request, answer: Response) -> None:
    key = request.auth
    given = request.data if isinstance(request.data, Mapping) else {}
    made = {"made": answer["Location"].rpartition("/")[2]} if "Location" in answer else {}
    log.info(
        "api.changed",
        key=key.prefix if isinstance(key, ApiKey) else "",
        method=request.method,
        path=request.get_full_path(),
        fields=sorted(map(str, given)),
        **made,
    )
