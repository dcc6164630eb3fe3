"""What the API says of messages that are fetched."""

from typing import Any

from rest_framework import serializers


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
