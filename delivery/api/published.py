"""What publishing answers, and what a batch looks like, for OpenAPI and for the views."""

from typing import Any, Final

from rest_framework import serializers

from delivery.models import MessageOutcome
from delivery.publish.store import Accepted
from delivery.publish.terms import VOLATILE

ASTRAY: Final[dict[str, str]] = {
    MessageOutcome.DISCARDED: "None of the destination's subscriptions qualifies: the message is kept, nobody gets it.",
    MessageOutcome.DEAD_LETTERED: "There is no subscriber of this name: the message is kept, nobody gets it.",
}
"""What is said where a message's destination does not get it (behaviour 2.8)."""


class AcceptedEvent(serializers.Serializer[Any]):
    """What is answered to one event."""

    id = serializers.IntegerField(allow_null=True, help_text="The message's id; null: volatile, it is stored nowhere.")
    outcome = serializers.ChoiceField(MessageOutcome.choices)
    deliveries = serializers.IntegerField(
        help_text="TOPIC: how many subscriptions get it. QUEUE: how many may be asked, one of each group takes it."
    )
    detail = serializers.CharField(required=False, help_text="There: why its destination does not get it.")
    durability = serializers.ChoiceField(
        [VOLATILE], required=False, help_text="There: each of them is sent it once, and never again."
    )
    replayed = serializers.BooleanField(required=False, help_text="There: an earlier publish with this key is meant.")


class AcceptedBatch(serializers.Serializer[Any]):
    """What is answered to a batch: a result for each event, in order."""

    results = AcceptedEvent(many=True)


class BatchItem(serializers.Serializer[Any]):
    """One event of a batch."""

    event = serializers.CharField(help_text="The event type's name.")
    body = serializers.JSONField(required=False, help_text="The payload; its text is kept as it stands here.")
    body_base64 = serializers.CharField(required=False, help_text="The payload's bytes, instead of `body`.")
    content_type = serializers.CharField(required=False)
    headers = serializers.DictField(child=serializers.CharField(), required=False)
    filter_string = serializers.CharField(required=False)
    idempotency_key = serializers.CharField(required=False)
    callback_url = serializers.CharField(required=False, help_text="Where to post the result of a QUEUE event.")
    destination = serializers.CharField(required=False, help_text="As `Broker-Destination` where it is sent alone.")
    ttl = serializers.CharField(required=False, help_text="As `Broker-TTL`.")
    not_before = serializers.CharField(required=False, help_text="As `Broker-Not-Before`.")


class EventBatch(serializers.Serializer[Any]):
    """Up to 1,000 events."""

    events = BatchItem(many=True)


def answer_of(accepted: Accepted) -> dict[str, object]:
    """Return what is answered for an accepted event."""
    answer: dict[str, object] = {
        "id": accepted.id,
        "outcome": str(accepted.outcome),
        "deliveries": accepted.deliveries,
    }
    if detail := ASTRAY.get(accepted.outcome):
        answer["detail"] = detail
    return {**answer, "replayed": True} if accepted.replayed else answer
