"""Callbacks: endpoints post results of QUEUE messages, publishers read their state (contract 6.8 to 6.10)."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from django.conf import settings
from django.db.models import QuerySet
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from broker_project.core.api.bodies import RawParser, body_of
from broker_project.core.api.fields import NullableTime, OneOfField, QueryIdField
from broker_project.core.api.pagination import Order, PageQuery
from broker_project.core.api.records import Records
from delivery.api import problems as _problems  # noqa: F401 - registers the use cases' exceptions
from delivery.api.deliveries import HistoryMixin
from delivery.callbacks.reply import UnknownCallback, reply
from delivery.models import Callback, Delivery
from delivery.status.callback_status import CallbackState, callbacks_now, in_state
from delivery.statuses import MESSAGE_ID_PREFIX, DeliveryStatus
from subscriptions.api.authentication import check_failures, count_failure
from subscriptions.api.permissions import MayPublish, records_of
from subscriptions.models import Scope

TOKENS: Final = "tokens"
"""What a client without a valid token may be guessing."""


class ReplyTaken(serializers.Serializer[Any]):
    """The answer to a reply."""

    id = serializers.IntegerField(help_text="The reply's id: it is a message.")


class Reply(APIView):
    """The address in the `CallbackURL` header of a QUEUE request: its token is the key, no other is needed."""

    authentication_classes = ()
    permission_classes = ()
    parser_classes = [RawParser]
    http_method_names = ["post"]
    problems = {"post": ("unknown_callback", "callback_answered", "callback_expired")}

    @extend_schema(
        operation_id="reply_to_callback",
        auth=[],
        request={"application/json": OpenApiTypes.ANY, "*/*": OpenApiTypes.BINARY},
        responses={201: ReplyTaken, 200: ReplyTaken},
    )
    def post(self, request: Request, token: str) -> Response:
        """Reply to a callback, once: 201, the same again 200 with the same id, another 409, too late 410.

        The answer follows once the result is durable. It is then posted to the publisher's CallbackURL until that
        accepts it.
        """
        check_failures(request, at=TOKENS)
        try:
            taken = reply(
                token,
                body_of(request, max_bytes=settings.MAX_BODY_BYTES),
                request.META.get("CONTENT_TYPE") or "application/octet-stream",
                list(request.headers.items()),
                days=settings.CALLBACK_DAYS,
            )
        except UnknownCallback:
            count_failure(request, at=TOKENS)
            raise
        return Response({"id": taken.id}, status.HTTP_201_CREATED if taken.is_new else status.HTTP_200_OK)


class CallbackQuery(PageQuery):
    """The filters of the list of callbacks."""

    message = QueryIdField(prefix=MESSAGE_ID_PREFIX, help_text="The published QUEUE message.")
    state = OneOfField(CallbackState.choices)


class ReplyDeliverySerializer(serializers.ModelSerializer[Delivery]):
    """The delivery of a reply to the original URL."""

    status = serializers.ChoiceField(DeliveryStatus.choices)
    due_at = NullableTime(source="next_try_at", help_text="When it is sent next.")

    class Meta:
        model = Delivery
        fields: tuple[str, ...] = ("id", "status", "attempts", "reason", "due_at", "finished_at")


class WholeReplyDeliverySerializer(HistoryMixin, ReplyDeliverySerializer):
    """The delivery of a reply with its attempts."""

    class Meta(ReplyDeliverySerializer.Meta):
        fields = (*ReplyDeliverySerializer.Meta.fields, "history")


class CallbackSerializer(serializers.Serializer[Any]):
    """Where the result of a message is posted to, and its state."""

    id = serializers.IntegerField(source="callback.id")
    message_id = serializers.IntegerField(source="callback.message_id")
    state = serializers.ChoiceField(CallbackState.choices)
    url = serializers.CharField(source="callback.url", help_text="The CallbackURL; empty if there is a `parent_id`.")
    parent_id = serializers.IntegerField(
        source="callback.parent_id", allow_null=True, help_text="The callback that the reply is passed on to."
    )
    depth = serializers.IntegerField(source="callback.depth", help_text="Its place in a chain of callbacks.")
    created_at = serializers.DateTimeField(source="callback.created_at")
    expires_at = serializers.DateTimeField(
        source="callback.expires_at",
        allow_null=True,
        help_text="Until when replies are accepted and delivered. Null: an endpoint may still get the job.",
    )
    replied_at = serializers.DateTimeField(source="callback.replied_at", allow_null=True)
    reply_id = serializers.IntegerField(
        source="callback.reply_id", allow_null=True, help_text="The reply, which is a message."
    )
    delivery = ReplyDeliverySerializer(allow_null=True)


class WholeCallbackSerializer(CallbackSerializer):
    """A callback with the attempts to deliver its reply."""

    delivery = WholeReplyDeliverySerializer(allow_null=True)


callbacks_for = records_of(Callback.objects.defer("token_sealed"), "publisher", "publisher_id")


class Callbacks(Records[Callback]):
    """Callbacks: management sees all, a publisher those of its messages."""

    permission_classes = [MayPublish]
    needs = {"get": Scope.READ}
    serializer_class = CallbackSerializer
    serializer_classes = {"retrieve": WholeCallbackSerializer}
    filters = CallbackQuery
    order = Order("callbacks", descending=True)
    visible_to = staticmethod(callbacks_for)

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Pass a POST on to `Reply`: it is a reply to a token, though no token is a number."""
        if request.method == "POST" and "id" in kwargs:
            return Reply.as_view()(request, token=str(kwargs["id"]))
        return super().dispatch(request, *args, **kwargs)

    def filtered(self, rows: QuerySet[Callback], query: Mapping[str, Any]) -> QuerySet[Callback]:
        """Return the rows of the message, in the state."""
        columns = {**query}
        state = columns.pop("state", None)
        rows = super().filtered(rows, columns)
        return in_state(rows, CallbackState(state), now=timezone.now()) if state else rows

    def shown(self, rows: Sequence[Callback]) -> Any:
        """Return the callbacks with their present state; a single one with the attempts to deliver its reply."""
        return self.get_serializer(callbacks_now(rows, now=timezone.now()), many=True).data
