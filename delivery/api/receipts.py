"""Acknowledge, return and extend messages by receipt: one, or many, each with its own result (contract 9.2, 9.4)."""

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from django.conf import settings
from drf_spectacular.utils import OpenApiResponse, PolymorphicProxySerializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.examples import RECEIPT
from broker_project.core.api.fields import StrictSerializer, TextField, TruthField, WholeNumberField
from broker_project.core.api.problems import PROBLEM_JSON, ProblemType, problem
from broker_project.core.api.records import operation
from delivery.api.grouped_view import DeferredAnswer, GroupedView
from delivery.api.mailboxes import mailbox_of, valid_body
from delivery.mailbox.acknowledge import (
    MAX_RECEIPTS,
    UNKNOWN,
    AcknowledgeCall,
    ReceiptCode,
    ReceiptResult,
    acknowledge_together,
    extend,
    nack,
)
from delivery.mailbox.receipts import Receipt, decode_receipt, receipt_key
from delivery.statuses import DeliveryStatus
from subscriptions.api.permissions import MayReceive
from subscriptions.models import Scope
from subscriptions.models.subscribers import ACK_SECONDS

ENDED: Final = "Its delivery has ended otherwise."
REFUSALS: Final[Mapping[ReceiptCode, str]] = {
    ReceiptCode.ACKNOWLEDGED: "Its message has been acknowledged.",
    ReceiptCode.RETURNED: "Its message has been returned: fetch it again.",
    ReceiptCode.STALE: "Its message has been fetched again since: only the newest receipt counts.",
    ReceiptCode.TIMED_OUT: "It has timed out, and in an ordered mailbox a newer message may be in flight.",
    ReceiptCode.UNKNOWN: "This mailbox has not issued such a receipt, or it was long ago.",
}
"""The error for a single receipt; for any other code, its delivery has ended."""

Results = Mapping[Receipt, ReceiptResult]


class ReceiptsField(serializers.ListField):
    """A JSON array of strings; valid ones are checked together, since DRF takes as long for each as all of this."""

    child = TextField(allow_blank=True)

    def run_child_validation(self, data: list[Any]) -> list[str]:
        """Return the strings; raise `ValidationError` with the errors of each."""
        if all(type(text) is str and "\0" not in text for text in data):
            return data
        return super().run_child_validation(data)


class ReceiptsSerializer(StrictSerializer):
    """One receipt, or several."""

    example = {"receipts": [RECEIPT]}
    receipt = TextField(required=False, allow_blank=True, help_text="Answered with its own status.")
    receipts = ReceiptsField(
        required=False,
        min_length=1,
        max_length=MAX_RECEIPTS,
        help_text="Answered 200 with a result for each.",
    )

    exactly_one_of = ("receipt", "receipts")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse both or none."""
        if ("receipt" in attrs) == ("receipts" in attrs):
            raise serializers.ValidationError("Give either receipt or receipts.")
        return attrs


class ReturnedSerializer(ReceiptsSerializer):
    """Receipts of messages to return."""

    not_attempted = TruthField(
        required=False,
        default=False,
        help_text="Work on them has not begun: they are available again, even if their redeliveries are exhausted.",
    )


class ExtendedSerializer(ReceiptsSerializer):
    """Receipts of messages to extend."""

    example = {**ReceiptsSerializer.example, "seconds": 60}
    seconds = WholeNumberField(
        required=False,
        min_value=ACK_SECONDS[0],
        max_value=ACK_SECONDS[1],
        help_text="From now on; without it, the subscriber's `ack_seconds`.",
    )


class ResultSerializer(serializers.Serializer[Any]):
    """The result for one receipt; a repeated call gets the same."""

    receipt = serializers.CharField(allow_blank=True)
    status = serializers.ChoiceField([200, 404, 409])
    code = serializers.ChoiceField([(code.value, code.value) for code in ReceiptCode])
    delivery_status = serializers.ChoiceField(DeliveryStatus.choices, required=False)
    in_flight_until = serializers.DateTimeField(required=False)
    in_flight_seconds = serializers.FloatField(required=False, help_text="The time from the extension until then.")


class ResultsSerializer(serializers.Serializer[Any]):
    """A result for each receipt, in their order."""

    results = ResultSerializer(many=True)


_CODES: Final = ", ".join(f"`{code}`" for code in (*REFUSALS, ReceiptCode.ENDED) if code != ReceiptCode.UNKNOWN)
_REFUSED: Final = {
    "allOf": [
        {"$ref": "#/components/schemas/Problem"},
        {
            "type": "object",
            "properties": {
                "receipt": {"type": "string"},
                "delivery_status": {"$ref": "#/components/schemas/DeliveryStatus"},
            },
        },
    ]
}
RESPONSES: Final = {
    200: OpenApiResponse(
        PolymorphicProxySerializer("AnsweredReceipts", [ResultsSerializer, ResultSerializer], None),
        "With `receipts` a result for each, in their order; with `receipt` its own.",
    ),
    (404, PROBLEM_JSON): OpenApiResponse(
        _REFUSED, "No such mailbox; or this mailbox has not issued the single `receipt` (`unknown_receipt`)."
    ),
    (409, PROBLEM_JSON): OpenApiResponse(_REFUSED, f"The single `receipt` does not count; `code` says why: {_CODES}."),
}
_receiving = partial(operation, "post", Scope.RECEIVE, MayReceive, responses=RESPONSES)


def _receipts_in(given: Mapping[str, Any], subscriber_id: int) -> list[Receipt | None]:
    """Return the receipts of a request; None in place of each that is not a receipt of this subscriber."""
    keys = [receipt_key(secret) for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)]
    return [decode_receipt(text, subscriber_id=subscriber_id, keys=keys) for text in _texts_in(given)]


def _texts_in(given: Mapping[str, Any]) -> Sequence[str]:
    return given["receipts"] if "receipts" in given else [given["receipt"]]


def _answer(given: Mapping[str, Any], receipts: Sequence[Receipt | None], found: Results) -> Response:
    """Return the result of each of the given receipts."""
    texts = _texts_in(given)
    results = [found[one] if one else UNKNOWN for one in receipts]
    if "receipts" in given:
        return Response({"results": [_shown(*one) for one in zip(texts, results, strict=True)]})
    text, result = texts[0], results[0]
    if result.status == HTTPStatus.OK:
        return Response(_shown(text, result))
    kind = ProblemType(int(result.status), result.code)
    known = {"delivery_status": result.delivery_status} if result.delivery_status else {}
    return problem(kind, REFUSALS.get(result.code, ENDED), headers=None, receipt=text, **known)


def _shown(text: str, result: ReceiptResult) -> dict[str, object]:
    known = {
        "delivery_status": result.delivery_status,
        "in_flight_until": result.until,
        "in_flight_seconds": result.seconds,
    }
    always = {"receipt": text, "status": int(result.status), "code": result.code}
    return always | {name: value for name, value in known.items() if value is not None}


@_receiving(request=ReceiptsSerializer, base=GroupedView)
def acknowledge_messages(request: Request, name: str) -> DeferredAnswer[AcknowledgeCall, Results]:
    """Acknowledge messages: they end as DELIVERED; a repeated call changes nothing and gets the same answer."""
    mailbox, given = mailbox_of(request, name), valid_body(ReceiptsSerializer, request)
    receipts = _receipts_in(given, mailbox.pk)
    call = AcknowledgeCall(mailbox.pk, [*filter(None, receipts)])
    return DeferredAnswer(acknowledge_together, call, partial(_answer, given, receipts))


@_receiving(request=ReturnedSerializer)
def return_messages(request: Request, name: str) -> Response:
    """Return messages: they are available again; those whose redeliveries are exhausted end, unless `not_attempted`."""
    mailbox, given = mailbox_of(request, name), valid_body(ReturnedSerializer, request)
    receipts = _receipts_in(given, mailbox.pk)
    found = nack(mailbox.pk, [*filter(None, receipts)], not_attempted=given["not_attempted"])
    return _answer(given, receipts, found)


@_receiving(request=ExtendedSerializer)
def extend_messages(request: Request, name: str) -> Response:
    """Extend messages: keep them in flight for this many seconds from now; a longer time is not shortened."""
    mailbox, given = mailbox_of(request, name), valid_body(ExtendedSerializer, request)
    receipts = _receipts_in(given, mailbox.pk)
    found = extend(mailbox.pk, [*filter(None, receipts)], seconds=given.get("seconds", mailbox.ack_seconds))
    return _answer(given, receipts, found)
