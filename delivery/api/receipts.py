"""Acknowledge, return and extend messages by receipt: one, or many answered one by one (contract 9.2, 9.4)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from django.urls import URLPattern, path
from drf_spectacular.utils import OpenApiResponse, PolymorphicProxySerializer, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.fields import StrictSerializer, TextField, TruthField, WholeNumberField
from broker_project.core.api.problems import PROBLEM_JSON, ProblemType, problem
from delivery.api.mailboxes import MailboxView, receipts_in
from delivery.mailbox.acknowledge import MAX_RECEIPTS, UNKNOWN, ReceiptCode, ReceiptResult, acknowledge, extend, nack
from delivery.mailbox.mailbox import Receipt
from delivery.statuses import DeliveryStatus
from subscriptions.models.subscribers import ACK_SECONDS

ENDED: Final = "Its delivery has ended otherwise."

Say = Callable[[int, Sequence[Receipt]], Mapping[Receipt, ReceiptResult]]
"""Says something of a subscriber's receipts."""

REFUSALS: Final[Mapping[ReceiptCode, str]] = {
    ReceiptCode.ACKNOWLEDGED: "Its message has been acknowledged.",
    ReceiptCode.RETURNED: "Its message has been returned: fetch it again.",
    ReceiptCode.STALE: "Its message has been handed out again since: only the newest receipt counts.",
    ReceiptCode.TIMED_OUT: "Its message is in flight no more, and in an ordered mailbox something newer may be.",
    ReceiptCode.UNKNOWN: "This mailbox has given out no such receipt, or it was long ago.",
}
"""What a single receipt is refused with; any other code: its delivery has ended."""


class ReceiptsSerializer(StrictSerializer):
    """One receipt, or several."""

    receipt = TextField(required=False, allow_blank=True, help_text="Answered with its own status.")
    receipts = serializers.ListField(
        child=TextField(allow_blank=True),
        required=False,
        min_length=1,
        max_length=MAX_RECEIPTS,
        help_text="Answered 200 with a result for each.",
    )

    exactly_one_of = ("receipt", "receipts")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Take one of the two only."""
        if ("receipt" in attrs) == ("receipts" in attrs):
            raise serializers.ValidationError("Give either receipt or receipts.")
        return attrs


class ReturnedSerializer(ReceiptsSerializer):
    """The same, and whether somebody has tried."""

    not_attempted = TruthField(
        required=False,
        default=False,
        help_text="Nobody has begun to work on them: they are available again however often they were handed out.",
    )


class ProlongedSerializer(ReceiptsSerializer):
    """The same, and for how long."""

    seconds = WholeNumberField(
        required=False,
        min_value=ACK_SECONDS[0],
        max_value=ACK_SECONDS[1],
        help_text="From now on; without, the subscriber's `ack_seconds`.",
    )


class ResultSerializer(serializers.Serializer[Any]):
    """What became of one receipt; the same again if it is repeated."""

    receipt = serializers.CharField(allow_blank=True)
    status = serializers.ChoiceField([200, 404, 409])
    code = serializers.ChoiceField([(code.value, code.value) for code in ReceiptCode])
    delivery_status = serializers.ChoiceField(DeliveryStatus.choices, required=False)
    in_flight_until = serializers.DateTimeField(required=False)
    in_flight_seconds = serializers.FloatField(required=False, help_text="How long that is from when it was prolonged.")


class ResultsSerializer(serializers.Serializer[Any]):
    """A result for each receipt, in their order."""

    results = ResultSerializer(many=True)


_WHY: Final = ", ".join(f"`{code}`" for code in (*REFUSALS, ReceiptCode.ENDED) if code != ReceiptCode.UNKNOWN)
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
        _REFUSED, "No such mailbox; or of one `receipt`: this mailbox has not given it out (`unknown_receipt`)."
    ),
    (409, PROBLEM_JSON): OpenApiResponse(_REFUSED, f"Of one `receipt`: it does not count; `code` says why: {_WHY}."),
}
"""What is answered; the result of one receipt is told by the status too."""


def answer(given: Mapping[str, Any], subscriber_id: int, say: Say) -> Response:
    """Say it of the receipts that were given, each once, and return what the client is answered."""
    texts = given["receipts"] if "receipts" in given else [given["receipt"]]
    receipts = receipts_in(texts, subscriber_id)
    found = say(subscriber_id, sorted({one for one in receipts if one}))
    results = [found[one] if one else UNKNOWN for one in receipts]
    if "receipt" in given:
        return _answer_to_one(texts[0], results[0])
    return Response({"results": [_told(*one) for one in zip(texts, results, strict=True)]})


def _answer_to_one(text: str, result: ReceiptResult) -> Response:
    if result.status == HTTPStatus.OK:
        return Response(_told(text, result))
    kind = ProblemType(int(result.status), result.code, result.code.replace("_", " ").capitalize())
    known = {"delivery_status": result.delivery_status} if result.delivery_status else {}
    return problem(kind, REFUSALS.get(result.code, ENDED), headers=None, receipt=text, **known)


def _told(text: str, result: ReceiptResult) -> dict[str, object]:
    known = {
        "delivery_status": result.delivery_status,
        "in_flight_until": result.until,
        "in_flight_seconds": result.seconds,
    }
    told = {"receipt": text, "status": int(result.status), "code": result.code}
    return told | {name: value for name, value in known.items() if value is not None}


class Acknowledge(MailboxView):
    """Messages that are done."""

    @extend_schema(operation_id="acknowledge_messages", request=ReceiptsSerializer, responses=RESPONSES)
    def post(self, request: Request, name: str) -> Response:
        """End them as DELIVERED; doing so twice changes nothing, and is answered alike."""
        mailbox, given = self.mailbox(request, name), self.given(request, ReceiptsSerializer)
        return answer(given, mailbox.pk, acknowledge)


class GiveBack(MailboxView):
    """Messages that are not done."""

    @extend_schema(operation_id="return_messages", request=ReturnedSerializer, responses=RESPONSES)
    def post(self, request: Request, name: str) -> Response:
        """Make them available again at once; end those whose redeliveries are used up, unless nobody has tried."""
        mailbox, given = self.mailbox(request, name), self.given(request, ReturnedSerializer)
        return answer(given, mailbox.pk, partial(nack, not_attempted=given["not_attempted"]))


class Prolong(MailboxView):
    """Messages that take longer."""

    @extend_schema(operation_id="prolong_messages", request=ProlongedSerializer, responses=RESPONSES)
    def post(self, request: Request, name: str) -> Response:
        """Keep them in flight for so many seconds from now on; never for less than they are anyway."""
        mailbox, given = self.mailbox(request, name), self.given(request, ProlongedSerializer)
        seconds = given.get("seconds", mailbox.ack_seconds)
        return answer(given, mailbox.pk, partial(extend, seconds=seconds))


urlpatterns: Final[list[URLPattern]] = [
    path("mailboxes/<name:name>/ack", Acknowledge.as_view()),
    path("mailboxes/<name:name>/nack", GiveBack.as_view()),
    path("mailboxes/<name:name>/extend", Prolong.as_view()),
]
