"""Attempts as they are shown with their delivery: one request each, and what came back."""

from rest_framework import serializers

from delivery.models import Attempt


class AttemptSerializer(serializers.ModelSerializer[Attempt]):
    """One request and what came back."""

    meaning = serializers.CharField(
        read_only=True,
        allow_null=True,
        help_text="What followed under the subscription's retry policy: hold, aside, apart, suspend or end. Null: under"
        " TeamForge, where the status says it.",
    )
    by_hand = serializers.BooleanField(
        source="is_by_hand", read_only=True, help_text="Whether somebody had it sent: the first after a resubmit."
    )
    answer_headers = serializers.SerializerMethodField()
    answer_excerpt = serializers.SerializerMethodField()

    class Meta:
        model = Attempt
        fields = (
            *("number", "started_at", "duration_ms", "status_code", "error", "meaning", "by_hand"),
            *("answer_headers", "answer_excerpt"),
        )

    def get_answer_headers(self, attempt: Attempt) -> str:
        """Return the status line and headers as text; what is no text is replaced."""
        return bytes(attempt.answer_headers).decode("latin-1")

    def get_answer_excerpt(self, attempt: Attempt) -> str:
        """Return the body's beginning as text; what is no UTF-8 is replaced."""
        return bytes(attempt.answer_excerpt).decode("utf-8", "replace")
