"""What subscribers fetch themselves: the next messages, how their mailbox stands, and emptying it (contract 9)."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import cache
from typing import Any, Final

from django.conf import settings
from django.http import Http404
from django.urls import URLPattern, path
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from broker_project.core.api.fields import NumberField, StrictSerializer, WholeNumberField
from delivery.mailbox.fetch_messages import message_document
from delivery.mailbox.long_poll import poll_messages
from delivery.mailbox.mailbox import (
    FetchedMessage,
    MailboxRef,
    Receipt,
    decode_receipt,
    encode_receipt,
    mailbox_owner,
    receipt_key,
)
from delivery.mailbox.mailbox_status import MAX_COUNTED, mailboxes_of
from delivery.mailbox.unread import PURGE_SECONDS, purge
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.api.resources import Noted, refuse_body
from subscriptions.credentials.keys import is_usable
from subscriptions.models import Scope, Subscriber

MAX_MESSAGES: Final = 100
MESSAGES: Final = 10
"""Fetched at once unless the client says otherwise."""
MAX_WAIT_SECONDS: Final = 20


DISCONNECTED: Final = "broker.disconnected"
"""Where the web server tells how to watch a client that waits."""
COUNTED: Final = f"counted to {MAX_COUNTED}."


class MailboxView(APIView):
    """One of the calls that a mailbox takes."""

    permission_classes = [MayReceive]
    needs = {"post": Scope.RECEIVE}

    def mailbox(self, request: Request, name: str) -> Subscriber:
        """Return the one of that name.

        Raises:
            Http404: there is none, or not for this key.

        """
        found = mailbox_owner(name, key=key_of(request))
        if found is None:
            raise Http404
        return found

    def is_still_allowed(self, request: Request) -> Callable[[], bool]:
        """Return what tells, later, whether the key that was good for the call is good still."""
        return lambda: is_usable(key_of(request), now=timezone.now())

    def given(self, request: Request, serializer_class: type[StrictSerializer]) -> dict[str, Any]:
        """Return what the body says; an empty one says nothing.

        Raises:
            ValidationError: it says something else.

        """
        values: dict[str, Any] = _checking(serializer_class).run_validation(request.data)
        return values


@cache
def _checking(serializer_class: type[StrictSerializer]) -> StrictSerializer:
    """Return one for all calls: making one, with copies of all its fields, costs as much as what it checks."""
    return serializer_class()


def receipts_for(fetched: Sequence[FetchedMessage], subscriber_id: int) -> list[str]:
    """Return a receipt for each, as its client gets it."""
    key = receipt_key(settings.SECRET_KEY)
    return [encode_receipt(one.receipt, subscriber_id=subscriber_id, key=key) for one in fetched]


def receipts_in(texts: Sequence[str], subscriber_id: int) -> list[Receipt | None]:
    """Return what each stands for; None: this mailbox has never given it out."""
    keys = [receipt_key(secret) for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return [decode_receipt(text, subscriber_id=subscriber_id, keys=keys) for text in texts]


class FetchedSerializer(serializers.Serializer[Any]):
    """A message that is handed out."""

    exactly_one_of = ("body", "body_base64")

    receipt = serializers.CharField(help_text="Names this hand-out: acknowledge, return or prolong it by this.")
    id = serializers.CharField(help_text="The same at every hand-out, and the `webhook-id` were it pushed.")
    delivery_id = serializers.IntegerField()
    message_id = serializers.IntegerField()
    event_type = serializers.CharField()
    subscription_id = serializers.IntegerField()
    published_at = serializers.DateTimeField()
    in_flight_until = serializers.DateTimeField(help_text="Then it is handed out again, unless it is acknowledged.")
    in_flight_seconds = serializers.FloatField(
        help_text="How long that is from when it was handed out, by no clock but the database's."
    )
    redeliveries = serializers.IntegerField(help_text="How often it had been handed out before.")
    possible_duplicate = serializers.BooleanField(help_text="Whether its subscriber may have it already.")
    content_type = serializers.CharField(allow_blank=True)
    headers = serializers.DictField(child=serializers.CharField(), help_text="Those of the publisher's that go on.")
    body = serializers.CharField(required=False, help_text="The exact bytes, where they are a text in UTF-8.")
    body_base64 = serializers.CharField(required=False, help_text="The bytes in base64, where they are none.")


class MessagesSerializer(serializers.Serializer[Any]):
    """Messages, the oldest first."""

    messages = FetchedSerializer(many=True)
    waited_seconds = serializers.FloatField(
        help_text="How long the call waited: so long after it was made, at least, they were handed out."
    )


RETRY_AFTER: Final = OpenApiParameter(
    "Retry-After",
    int,
    OpenApiParameter.HEADER,
    description="Seconds until the next call, where others wait instead of this one.",
    response=[204],
)


class NextSerializer(StrictSerializer):
    """How many messages, and how long to wait for the first."""

    max = WholeNumberField(
        required=False, default=MESSAGES, min_value=1, max_value=MAX_MESSAGES, help_text="How many messages at most."
    )
    wait = NumberField(
        required=False,
        default=0,
        min_value=0,
        max_value=MAX_WAIT_SECONDS,
        help_text="Seconds to wait where there is none.",
    )


class StandingSerializer(serializers.Serializer[Any]):
    """How a mailbox stands, and what its subscriber says of it."""

    available = serializers.IntegerField(help_text=f"There for the next who asks; {COUNTED}")
    in_flight = serializers.IntegerField(help_text=f"Fetched, and neither acknowledged nor timed out; {COUNTED}")
    waiting = serializers.IntegerField(
        help_text=f"HELD, delayed, or of subscriptions that are paused or INACTIVE; {COUNTED}"
    )
    redelivered = serializers.IntegerField(help_text=f"Unfinished, and fetched more than once, or returned; {COUNTED}")
    expired = serializers.IntegerField(help_text=f"EXPIRED, of what is kept; {COUNTED}")
    oldest_published_at = serializers.DateTimeField(
        allow_null=True, help_text="When the oldest that is available was published. Null: none is."
    )
    oldest_age_seconds = serializers.FloatField(allow_null=True, help_text="How long ago that was.")
    subscriptions = serializers.IntegerField(help_text="How many are PULL. 0: nothing ever gets there.")
    fetchable_subscriptions = serializers.IntegerField(
        help_text="Those of them that hand out what they have: ACTIVE, as their subscriber is, and not paused."
    )
    counted_to = serializers.IntegerField(help_text="A number as large as this may be larger.")
    mailbox_ordered = serializers.BooleanField()
    ack_seconds = serializers.IntegerField()
    max_redeliveries = serializers.IntegerField(allow_null=True)


class PurgedSerializer(serializers.Serializer[Any]):
    """What emptying it did."""

    cancelled = serializers.IntegerField(help_text="Ended as CANCELLED.")
    in_flight = serializers.IntegerField(help_text="In flight: end so unless they are acknowledged.")
    complete = serializers.BooleanField(help_text="False: there is more; ask again.")


class NextMessages(MailboxView):
    """What is available."""

    @extend_schema(
        operation_id="fetch_messages",
        request=NextSerializer,
        responses={
            200: MessagesSerializer,
            204: OpenApiResponse(description="There is none."),
        },
        parameters=[RETRY_AFTER],
    )
    def post(self, request: Request, name: str) -> Response:
        """Fetch the oldest messages, each with a receipt; they are in flight until they are acknowledged or time out.

        Where there is none, the call waits for the first to come, if it is told to.
        """
        mailbox, asked = self.mailbox(request, name), self.given(request, NextSerializer)
        messages, had_slot, waited_seconds = poll_messages(
            MailboxRef(mailbox.pk, mailbox.mailbox_ordered),
            max_messages=asked["max"],
            wait_seconds=asked["wait"],
            watch_disconnect=request.META.get(DISCONNECTED, Future),
            may_fetch=self.is_still_allowed(request),
        )
        if not messages:
            retry = {} if had_slot else {"Retry-After": "1"}
            return Response(status=status.HTTP_204_NO_CONTENT, headers=retry)
        told = zip(messages, receipts_for(messages, mailbox.pk), strict=True)
        return Response(
            {"messages": [message_document(one, receipt=own) for one, own in told], "waited_seconds": waited_seconds}
        )


class StandingOfMailbox(MailboxView):
    """How much there is."""

    needs = {"get": Scope.READ}

    @extend_schema(operation_id="read_mailbox", responses=StandingSerializer)
    def get(self, request: Request, name: str) -> Response:
        """Return how the mailbox stands."""
        mailbox = self.mailbox(request, name)
        standing = mailboxes_of([mailbox.pk])[mailbox.pk]
        own = {
            "counted_to": MAX_COUNTED,
            "mailbox_ordered": mailbox.mailbox_ordered,
            "ack_seconds": mailbox.ack_seconds,
            "max_redeliveries": mailbox.max_redeliveries,
        }
        return Response({**asdict(standing), **own})


class PurgeMailbox(Noted, MailboxView):
    """All that is in it."""

    @extend_schema(operation_id="purge_mailbox", request=None, responses=PurgedSerializer)
    def post(self, request: Request, name: str) -> Response:
        """End it all as CANCELLED, as much as a few seconds allow."""
        mailbox = self.mailbox(request, name)
        refuse_body(request)
        cancelled, in_flight, is_complete = purge(mailbox.pk, seconds=PURGE_SECONDS)
        return Response({"cancelled": cancelled, "in_flight": in_flight, "complete": is_complete})


urlpatterns: Final[list[URLPattern]] = [
    path("mailboxes/<name:name>/next", NextMessages.as_view()),
    path("mailboxes/<name:name>/status", StandingOfMailbox.as_view()),
    path("mailboxes/<name:name>/purge", PurgeMailbox.as_view()),
]
