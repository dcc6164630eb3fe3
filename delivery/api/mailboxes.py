"""Mailboxes: fetch the next messages, read the state, purge (contract 9)."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import cache, partial
from typing import Any, Final

from django.conf import settings
from django.forms import model_to_dict
from django.http import Http404
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import NullableTime, NumberField, StrictSerializer, WholeNumberField
from broker_project.core.api.records import Audited, operation, refuse_body
from delivery.api.grouped_view import DeferredAnswer, GroupedView
from delivery.mailbox.fetch_messages import MAX_FETCHED, FetchCall, fetch_together, message_document
from delivery.mailbox.long_poll import wait_for_messages
from delivery.mailbox.mailbox_status import MAX_COUNTED, mailboxes_of
from delivery.mailbox.receipts import FetchedMessage, MailboxRef, encode_receipt, receipt_key
from delivery.mailbox.unread import purge
from delivery.operations import CANCEL_SECONDS
from subscriptions.api.permissions import MayReceive, key_of
from subscriptions.credentials.keys import is_usable
from subscriptions.models import Scope, Subscriber

DEFAULT_MESSAGES: Final = 10
MAX_WAIT_SECONDS: Final = 20

DISCONNECTED: Final = "broker.disconnected"
"""Where the web server says how to watch a waiting client."""
COUNTED: Final = f"counted to {MAX_COUNTED}."


def mailbox_of(request: Request, name: str) -> Subscriber:
    """Return the subscriber of that name; raise `Http404` if it does not exist or the key may not read its mailbox.

    Reads nothing for a subscriber's own key, which was loaded with its subscriber.
    """
    owner = key_of(request).subscriber or Subscriber.objects.filter(name=name).first()
    if owner is None or owner.name != name:
        raise Http404
    return owner


def valid_body(serializer_class: type[StrictSerializer], request: Request) -> dict[str, Any]:
    """Return the body's values, validated."""
    values: dict[str, Any] = _serializer(serializer_class).run_validation(request.data)
    return values


@cache
def _serializer(serializer_class: type[StrictSerializer]) -> StrictSerializer:
    """Return one serializer for all calls: creating it, with copies of all its fields, costs as much as validating."""
    return serializer_class()


class FetchedSerializer(serializers.Serializer[Any]):
    """A fetched message."""

    exactly_one_of = ("body", "body_base64")

    receipt = serializers.CharField(help_text="Names this fetch: acknowledge, return or extend it with this.")
    id = serializers.CharField(help_text="The same at every fetch, and the `webhook-id` if it were pushed.")
    delivery_id = serializers.IntegerField()
    message_id = serializers.IntegerField()
    event_type = serializers.CharField()
    subscription_id = serializers.IntegerField()
    published_at = serializers.DateTimeField()
    in_flight_until = serializers.DateTimeField(help_text="Then it is available again, unless it is acknowledged.")
    in_flight_seconds = serializers.FloatField(help_text="The time from the fetch until then, by the database's clock.")
    redeliveries = serializers.IntegerField(help_text="How often it was fetched before.")
    possible_duplicate = serializers.BooleanField(help_text="Whether the subscriber may have it already.")
    content_type = serializers.CharField(allow_blank=True)
    headers = serializers.DictField(child=serializers.CharField(), help_text="The publisher's, as far as forwarded.")
    body = serializers.CharField(required=False, help_text="The exact bytes, if they are UTF-8.")
    body_base64 = serializers.CharField(required=False, help_text="The bytes in base64, if they are not UTF-8.")


class MessagesSerializer(serializers.Serializer[Any]):
    """Messages, the oldest first."""

    messages = FetchedSerializer(many=True)
    waited_seconds = serializers.FloatField(
        help_text="How long the call waited: the messages were fetched at least this long after the request."
    )


class NextSerializer(StrictSerializer):
    """How many messages, and how long to wait for the first."""

    example = {"max_messages": 10, "wait_seconds": 20}
    max_messages = WholeNumberField(required=False, default=DEFAULT_MESSAGES, min_value=1, max_value=MAX_FETCHED)
    wait_seconds = NumberField(
        required=False,
        default=0,
        min_value=0,
        max_value=MAX_WAIT_SECONDS,
        help_text="How long to wait if no message is available.",
    )


class MailboxSerializer(serializers.Serializer[Any]):
    """The state of a mailbox, and its subscriber's settings."""

    available = serializers.IntegerField(help_text=f"Available to the next call; {COUNTED}")
    in_flight = serializers.IntegerField(help_text=f"Fetched, and neither acknowledged nor timed out; {COUNTED}")
    waiting = serializers.IntegerField(
        help_text=f"HELD, delayed, or of subscriptions that are paused or INACTIVE; {COUNTED}"
    )
    redelivered = serializers.IntegerField(help_text=f"Unfinished, and fetched more than once, or returned; {COUNTED}")
    expired = serializers.IntegerField(help_text=f"EXPIRED and still kept; {COUNTED}")
    oldest_published_at = NullableTime(
        help_text="When the oldest available message was published. Null: none is available."
    )
    oldest_age_seconds = serializers.FloatField(allow_null=True, help_text="How long ago that was.")
    subscriptions = serializers.IntegerField(help_text="How many are PULL. 0: nothing ever gets there.")
    fetchable_subscriptions = serializers.IntegerField(
        help_text="Those of them whose messages can be fetched: ACTIVE, with an ACTIVE subscriber, and not paused."
    )
    counted_to = serializers.IntegerField(help_text="A number as large as this may be larger.")
    mailbox_ordered = serializers.BooleanField()
    ack_seconds = serializers.IntegerField()
    max_redeliveries = serializers.IntegerField(allow_null=True)
    mailbox_days = serializers.IntegerField(help_text="From its publishing, until an unread message is EXPIRED.")


class PurgedSerializer(serializers.Serializer[Any]):
    """How many deliveries were cancelled."""

    cancelled = serializers.IntegerField(help_text="Ended as CANCELLED.")
    in_flight = serializers.IntegerField(help_text="In flight: end so, unless they are acknowledged.")
    complete = serializers.BooleanField(help_text="False: there is more. Call again.")


@operation(
    "post",
    Scope.RECEIVE,
    MayReceive,
    base=GroupedView,
    request=NextSerializer,
    responses={200: MessagesSerializer, 204: OpenApiResponse(description="No message is available.")},
    parameters=[
        OpenApiParameter(
            "Retry-After",
            int,
            OpenApiParameter.HEADER,
            description="Seconds until the next call, if other calls wait instead of this one.",
            response=[204],
        )
    ],
)
def fetch_messages(request: Request, name: str) -> DeferredAnswer[FetchCall, Sequence[FetchedMessage]]:
    """Fetch messages from a mailbox: the oldest, each with a receipt.

    They are in flight until they are acknowledged or time out.

    If no message is available, the call waits for the first one, for as long as it asks to.
    """
    mailbox, asked = mailbox_of(request, name), valid_body(NextSerializer, request)
    call = FetchCall(MailboxRef(mailbox.pk, mailbox.mailbox_ordered), asked["max_messages"])
    answer = partial(_answer_to_fetch, request, call, asked["wait_seconds"])
    return DeferredAnswer(fetch_together, call, answer, is_slow=lambda messages: not messages and asked["wait_seconds"])


def _answer_to_fetch(
    request: Request, call: FetchCall, wait_seconds: float, messages: Sequence[FetchedMessage]
) -> Response:
    had_slot, waited_seconds = True, 0.0
    if not messages and wait_seconds:
        messages, had_slot, waited_seconds = wait_for_messages(
            call.mailbox,
            max_messages=call.max_messages,
            wait_seconds=wait_seconds,
            watch_disconnect=request.META.get(DISCONNECTED, Future),
            may_fetch=lambda: is_usable(key_of(request), now=timezone.now()),
        )
    if not messages:
        retry = {} if had_slot else {"Retry-After": "1"}
        return Response(status=status.HTTP_204_NO_CONTENT, headers=retry)
    key = receipt_key(settings.SECRET_KEY)
    documents = [
        message_document(one, receipt=encode_receipt(one.receipt, subscriber_id=call.mailbox.subscriber_id, key=key))
        for one in messages
    ]
    return Response({"messages": documents, "waited_seconds": waited_seconds})


@operation("get", Scope.READ, MayReceive, responses=MailboxSerializer)
def read_mailbox(request: Request, name: str) -> Response:
    """Read the state of a mailbox."""
    mailbox = mailbox_of(request, name)
    terms = model_to_dict(mailbox, fields=("mailbox_ordered", "ack_seconds", "max_redeliveries"))
    terms["mailbox_days"] = mailbox.mailbox_days or settings.MAILBOX_DAYS
    return Response({**asdict(mailboxes_of([mailbox.pk])[mailbox.pk]), "counted_to": MAX_COUNTED, **terms})


@operation("post", Scope.RECEIVE, MayReceive, base=Audited, request=None, responses=PurgedSerializer)
def purge_mailbox(request: Request, name: str) -> Response:
    """Purge a mailbox: end all its deliveries as CANCELLED, as many as a few seconds allow."""
    mailbox = mailbox_of(request, name)
    refuse_body(request)
    ended, in_flight, is_complete = purge(mailbox.pk, seconds=CANCEL_SECONDS)
    return Response({"cancelled": ended, "in_flight": in_flight, "complete": is_complete})
