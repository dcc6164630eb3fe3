"""What a replay is asked for by over the API (behaviour 5.8)."""

from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from broker_project.core.api.fields import NameField, OneOfField, StrictSerializer, TruthField, WholeNumberField
from broker_project.core.api.moment_fields import MomentField
from delivery.replay.eligibility import REPLAYABLE, RESUBMITTABLE
from delivery.replay.selection import MOST_PACE, NothingToReplay, Selection
from subscriptions.api.own_fields import OwnSubscriberField, OwnSubscriptionField
from subscriptions.models import EventType, Subscriber, Subscription


class NewReplay(StrictSerializer):
    """Which deliveries are to be made again, and how fast."""

    subscription = OwnSubscriptionField(required=False)
    subscriber: serializers.SlugRelatedField[Subscriber] = OwnSubscriberField(
        required=False, queryset=Subscriber.objects.all(), help_text="Its name: all its subscriptions."
    )
    event_type: serializers.SlugRelatedField[EventType] = NameField(
        required=False, queryset=EventType.objects.all(), help_text="Only what was published as that."
    )
    statuses = serializers.ListField(
        child=OneOfField(sorted(REPLAYABLE)),
        required=False,
        allow_empty=False,
        help_text=f"Without it: {', '.join(sorted(RESUBMITTABLE))}.",
    )
    to = MomentField(required=False, help_text="Only deliveries that were made before.")
    pace = WholeNumberField(
        required=False, min_value=1, max_value=MOST_PACE, help_text="New deliveries a second at most."
    )
    dry_run = TruthField(default=False, help_text="Only count.")

    def get_fields(self) -> dict[str, Any]:
        """Return the fields, with the one that Python would take for a word of its own."""
        begin = MomentField(required=False, help_text="Only deliveries that were made then or later.")
        return {**super().get_fields(), "from": begin}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """Refuse both or none of a subscription and a subscriber, and a range that ends before it begins."""
        if "subscription" in attrs and "subscriber" in attrs:
            raise serializers.ValidationError("Give a subscription or a subscriber: one of them.")
        if "subscription" not in attrs and "subscriber" not in attrs:
            raise serializers.ValidationError("Give a subscription or a subscriber.")
        if "from" in attrs and "to" in attrs and attrs["from"] >= attrs["to"]:
            raise serializers.ValidationError({"to": ["This is not after `from`."]})
        return attrs


def selection_of(asked: Mapping[str, Any]) -> Selection:
    """Return which deliveries are asked for; `ValidationError` where none of them could be sent again."""
    one: Subscription | None = asked.get("subscription")
    event_type: EventType | None = asked.get("event_type")
    try:
        return Selection.among(
            [one] if one else asked["subscriber"].subscriptions.all(),
            statuses=asked.get("statuses", ()),
            event_type_id=event_type.pk if event_type else None,
            begin=asked.get("from"),
            end=asked.get("to"),
        )
    except NothingToReplay as nothing:
        raise serializers.ValidationError({"subscription" if one else "subscriber": [str(nothing)]}) from nothing
