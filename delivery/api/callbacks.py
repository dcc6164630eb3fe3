"""Callbacks, to be read: those of a publisher's messages, or all; never their tokens."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.utils import extend_schema, extend_schema_field, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import OneOfField, QueryNumberField
from broker_project.core.api.pagination import Order, PageQuery, page_response, query_of
from delivery.api.deliveries import AttemptSerializer
from delivery.api.records import Records
from delivery.api.replies import Reply
from delivery.models import Callback, Delivery
from delivery.status.callback_status import CallbackState, callbacks_now, in_state
from delivery.statuses import DeliveryStatus
from subscriptions.api.permissions import MayPublish
from subscriptions.models import ApiKey, KeyKind

LARGEST_ID: Final = 2**63 - 1
ATTEMPTS_SHOWN: Final = 200


class CallbackQuery(PageQuery):
    """What callbacks can be listed by."""

    message = QueryNumberField(
        required=False, min_value=1, max_value=LARGEST_ID, help_text="The QUEUE message that was published."
    )
    state = OneOfField(CallbackState.choices, required=False)


class ReplyDeliverySerializer(serializers.ModelSerializer[Delivery]):
    """The reply on its way to the original URL."""

    status = serializers.ChoiceField(DeliveryStatus.choices, read_only=True)
    due_at = serializers.DateTimeField(
        source="next_try_at", read_only=True, allow_null=True, help_text="When it is tried again."
    )

    class Meta:
        model = Delivery
        fields: tuple[str, ...] = ("id", "status", "attempts", "reason", "due_at", "finished_at")


class WholeReplyDeliverySerializer(ReplyDeliverySerializer):
    """The same with its attempts."""

    history = serializers.SerializerMethodField()

    class Meta(ReplyDeliverySerializer.Meta):
        fields = (*ReplyDeliverySerializer.Meta.fields, "history")

    @extend_schema_field(AttemptSerializer(many=True))
    def get_history(self, delivery: Delivery) -> list[dict[str, Any]]:
        """Return its attempts, the newest 200 in their order."""
        newest = delivery.attempt_set.order_by("-id")[:ATTEMPTS_SHOWN]  # and each knows its delivery
        return [dict(AttemptSerializer(one).data) for one in [*newest][::-1]]


class CallbackSerializer(serializers.Serializer[Any]):
    """Where the result of a message is posted to, and what became of it."""

    id = serializers.IntegerField(source="callback.id")
    message_id = serializers.IntegerField(source="callback.message_id")
    state = serializers.ChoiceField(CallbackState.choices)
    url = serializers.CharField(
        source="callback.url", help_text="The CallbackURL; empty: another callback, `parent_id`."
    )
    parent_id = serializers.IntegerField(
        source="callback.parent_id", allow_null=True, help_text="The callback that the reply is passed on to."
    )
    depth = serializers.IntegerField(source="callback.depth", help_text="Its place in a chain of callbacks.")
    created_at = serializers.DateTimeField(source="callback.created_at")
    expires_at = serializers.DateTimeField(
        source="callback.expires_at", help_text="Until when it may be replied to, and then the reply be delivered."
    )
    replied_at = serializers.DateTimeField(source="callback.replied_at", allow_null=True)
    reply_id = serializers.IntegerField(
        source="callback.reply_id", allow_null=True, help_text="The reply, which is a message."
    )
    delivery = ReplyDeliverySerializer(allow_null=True)


class WholeCallbackSerializer(CallbackSerializer):
    """A callback with the attempts to deliver its reply."""

    delivery = WholeReplyDeliverySerializer(allow_null=True)


def shown(callbacks: Sequence[Callback]) -> list[dict[str, Any]]:
    """Return the callbacks as lists show them."""
    return [dict(CallbackSerializer(one).data) for one in callbacks_now(callbacks, now=timezone.now())]


@extend_schema_view(retrieve=extend_schema(responses=WholeCallbackSerializer))
class Callbacks(Records[Callback]):
    """What endpoints may reply to, and what became of their replies."""

    permission_classes = [MayPublish]
    serializer_class = CallbackSerializer
    query_class = CallbackQuery
    order = Order("callbacks", descending=True)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Hand on what is posted to an id: that is a reply to a token, though no token is a number."""
        if request.method == "POST" and "id" in kwargs:
            return Reply.as_view()(request, token=str(kwargs["id"]))
        return super().dispatch(request, *args, **kwargs)

    def visible_to(self, key: ApiKey) -> QuerySet[Callback]:
        """Return management all, a publisher those of its messages."""
        callbacks = Callback.objects.defer("token_sealed")
        return callbacks if key.kind == KeyKind.MANAGEMENT else callbacks.filter(publisher=key.publisher_id)

    def filtered(self, rows: QuerySet[Callback], query: Mapping[str, Any]) -> QuerySet[Callback]:
        """Return those of a message, or in a state."""
        if "message" in query:
            rows = rows.filter(message=query["message"])
        return in_state(rows, CallbackState(query["state"]), now=timezone.now()) if "state" in query else rows

    def list(self, request: Request) -> Response:
        """List them, a page at a time, newest first."""
        page = self.page(query_of(request, self.query_class))
        return page_response(request, page, shown(page.rows))

    def retrieve(self, request: Request, **_: Any) -> Response:  # noqa: ARG002 - DRF's signature
        """Read one, with the attempts to deliver its reply."""
        (now,) = callbacks_now([self.get_object()], now=timezone.now())
        return Response(WholeCallbackSerializer(now).data)
