"""What all configured records share over the API, then publishers, subscribers and retry policies."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Generic, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.bodies import check_length_given
from broker_project.core.api.fields import NameField, NamesField, StrictModelSerializer, WholeNumberField
from broker_project.core.api.history import Changed
from broker_project.core.api.pagination import Order
from broker_project.core.api.problems import UNKNOWN, ProblemType, register
from broker_project.core.api.records import CHANGED, Records, etag_of, expected_versions, refuse_body, valid
from subscriptions import edit
from subscriptions.api.permissions import Needs, ReadOrWrite, publishers_for, subscribers_for
from subscriptions.headers import validate_headers
from subscriptions.models import EventType, KeyKind, Processing, Publisher, RetryPolicy, Scope, Status, Subscriber
from subscriptions.models.base import Versioned, WithHeaders
from subscriptions.retry_policies import TERMS

Record = TypeVar("Record", bound=Versioned)

BROKER_FIELDS = ("version", "created_at", "updated_at")
"""Fields of every resource that nobody can set."""

register(
    {
        edit.NameTaken: ProblemType(409, "name_taken"),
        edit.IsPreset: ProblemType(409, "preset", "Came installed"),
        edit.VersionMismatch: ProblemType(412, "version_mismatch", "Changed meanwhile"),
        edit.StillInUse: ProblemType(409, "still_in_use"),
        ObjectDoesNotExist: UNKNOWN,
    }
)


class Resource(Records[Record], Generic[Record]):
    """One kind of configured record under `/api/v1/`; answers have its version as `ETag`."""

    permission_classes = [ReadOrWrite]
    http_method_names = ["get", "head", "post", "patch", "delete"]
    needs: ClassVar[Needs] = {"get": Scope.READ, **dict.fromkeys(("post", "patch", "delete"), Scope.CONFIGURE)}
    problems = {
        "create": ("name_taken", "conflict", "length_required"),
        "partial_update": ("name_taken", "conflict", "length_required"),
        "destroy": ("still_in_use", "length_required"),
    }
    writers: ClassVar[frozenset[KeyKind]] = frozenset({KeyKind.MANAGEMENT})
    links: ClassVar[tuple[str, ...]] = ()
    """Many-to-many fields."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Refuse keys that may not call, and bodies that cannot be read."""
        super().initial(request, *args, **kwargs)
        check_length_given(request.META)

    def retrieve(self, request: Request, **_: Any) -> Response:  # noqa: ARG002 - DRF's signature
        """Read a record."""
        return self.answer(self.get_object())

    def create(self, request: Request) -> Response:
        """Create a record."""
        values = self.valid(request)
        links = {name: values.pop(name, []) for name in self.links}
        return self.created(edit.create(self.get_queryset().model(**values), links=links))

    def partial_update(self, request: Request, **_: Any) -> Response:
        """Update a record: change the given fields, if `If-Match` still holds."""
        changes = self.valid(request, partial=True)
        record = edit.change(self.selected(), changes=changes, expected=expected_versions(request))
        request.META[CHANGED] = [Changed(record, is_new=False, fields=sorted(request.data))]
        return self.answer(record)

    def destroy(self, request: Request, **_: Any) -> Response:
        """Delete a record; `If-Match` must still hold, and nothing may depend on it."""
        refuse_body(request)
        edit.remove(self.selected(), expected=expected_versions(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    def selected(self) -> QuerySet[Record]:
        """Return the record of the address, if the key can see and change it, for a use case to lock."""
        return self.get_queryset().filter(pk=self.get_object().pk)

    def valid(self, request: Request, **options: Any) -> dict[str, Any]:
        """Return the body's values, validated."""
        return valid(self.get_serializer_class(), request, **options)

    def change_by_action(self, request: Request, use_case: Callable[..., Record], **options: object) -> Response:
        """Change the record of the address as the use case does; the body must be empty."""
        refuse_body(request)
        return self.answer(use_case(self.selected(), expected=expected_versions(request), **options))

    def created(self, record: Record, **shown_once: str) -> Response:
        """Return the answer to a creation, with its address."""
        location = f"{self.request.path}/{getattr(record, self.lookup_field)}"
        return self.answer(record, status.HTTP_201_CREATED, {"Location": location}, **shown_once)

    def answer(
        self,
        record: Record,
        code: int = status.HTTP_200_OK,
        headers: Mapping[str, str] | None = None,
        **shown_once: str,
    ) -> Response:
        """Return the record with its `ETag`, and with secrets that only this answer shows."""
        data = {**self.get_serializer(record).data, **shown_once}
        uncached = {"Cache-Control": "no-store"} if shown_once else {}
        return Response(data, code, headers={"ETag": etag_of(record), **uncached, **(headers or {})})


def overlap_field(by_default: timedelta, longest: timedelta, help_text: str) -> WholeNumberField:
    """Declare for how many seconds a former key or secret stays valid."""
    seconds, max_seconds = (int(one.total_seconds()) for one in (by_default, longest))
    return WholeNumberField(required=False, default=seconds, min_value=0, max_value=max_seconds, help_text=help_text)


class ActivatedResource(Resource[Record], Generic[Record]):
    """A resource with a status."""

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def activate(self, request: Request, **_: str) -> Response:
        """Activate a record: it qualifies for new messages, and pending ones are sent."""
        return self.change_by_action(request, edit.change, changes={"status": Status.ACTIVE})

    @extend_schema(request=None)
    @action(detail=True, methods=["post"])
    def inactivate(self, request: Request, **_: str) -> Response:
        """Inactivate a record: pending messages are kept and not sent, and those published meanwhile never reach it."""
        return self.change_by_action(request, edit.change, changes={"status": Status.INACTIVE})


@extend_schema_field({"type": ["object", "null"], "additionalProperties": {"type": ["string", "null"]}})
class HeadersField(serializers.Field[Any, Any, Any, Any]):
    """Custom headers: names and values can be set, and only the names are shown, with null as value."""

    def __init__(self, *, help_text: str) -> None:
        text = "Values are often secrets and are shown as null. A null that is sent keeps the current value."
        super().__init__(required=False, help_text=f"{help_text} {text}")

    def to_internal_value(self, data: Any) -> dict[str, str | None]:
        """Return the headers, checked; a null keeps its value if the record is changed, and is refused if it is new."""
        keeps = self.root.partial and isinstance(data, Mapping)
        validate_headers({name: value for name, value in data.items() if value is not None} if keeps else data)
        return dict(data)

    def get_attribute(self, instance: WithHeaders) -> list[str] | None:
        """Return the names; None if they cannot be decrypted."""
        return instance.header_names

    def to_representation(self, value: list[str]) -> dict[str, None]:
        """Return the names, without values."""
        return dict.fromkeys(value)


class PublisherSerializer(StrictModelSerializer[Publisher]):
    """A publisher."""

    example = {"name": "shop", "description": "The shop's back end.", "event_types": ["Shop.Order.Placed"]}
    event_types = NamesField(
        child_relation=NameField[EventType](queryset=EventType.objects.all()),
        required=False,
        help_text="The event types that it may publish; empty: all.",
    )

    class Meta:
        model = Publisher
        fields = ("name", "description", "event_types", "max_open_messages", *BROKER_FIELDS)
        read_only_fields = BROKER_FIELDS


class Publishers(Resource[Publisher]):
    """Publishers: management sees all, a publisher itself."""

    serializer_class = PublisherSerializer
    lookup_field = lookup_value_converter = "name"
    order = Order("publishers", "name")
    visible_to = staticmethod(publishers_for)
    links = related = ("event_types",)


class SubscriberSerializer(StrictModelSerializer[Subscriber]):
    """A subscriber."""

    example = {"name": "warehouse", "description": "Packs and ships orders."}
    fixed = ("status",)
    elsewhere = {"status": ": POST …/activate or …/inactivate"}
    headers = HeadersField(help_text="Sent with every delivery.")

    class Meta:
        model = Subscriber
        read_only_fields = ("unreadable", *BROKER_FIELDS)
        fields = (
            *("name", "description", "status", "headers", "max_queued_to_send", "max_queued_bytes"),
            *("refill_percent", "processing", "concurrency", "ordering_key"),
            *("mailbox_ordered", "ack_seconds", "max_redeliveries", "mailbox_days", *read_only_fields),
        )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Return the values; SERIAL implies a concurrency of 1."""
        return {"concurrency": 1, **attrs} if attrs.get("processing") == Processing.SERIAL else attrs


class Subscribers(ActivatedResource[Subscriber]):
    """Subscribers: management sees all, a subscriber itself."""

    serializer_class = SubscriberSerializer
    lookup_field = lookup_value_converter = "name"
    order = Order("subscribers", "name")
    visible_to = staticmethod(subscribers_for)


class RetryPolicySerializer(StrictModelSerializer[RetryPolicy]):
    """A retry policy; missing fields have the values of the default policy, TeamForge."""

    example = {
        "name": "patient",
        "schedule": [60, 600, 3600],
        "max_delay_seconds": 3600,
        "max_retries": 3,
        "on_exhausted": "FAIL",
    }

    class Meta:
        model = RetryPolicy
        read_only_fields = ("is_preset", *BROKER_FIELDS)
        fields = ("name", "description", *TERMS, *read_only_fields)


class RetryPolicies(Resource[RetryPolicy]):
    """Retry policies, which every key sees."""

    queryset = RetryPolicy.objects.all()
    serializer_class = RetryPolicySerializer
    lookup_field = lookup_value_converter = "name"
    order = Order("retry policies", "name")
    problems = {
        **Resource.problems,
        "partial_update": ("preset", *Resource.problems["partial_update"]),
        "destroy": ("preset", *Resource.problems["destroy"]),
    }
