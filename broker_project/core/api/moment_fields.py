"""Moments in bodies and queries, as publishers give theirs (behaviour 2.10)."""

from datetime import datetime

from rest_framework import serializers


class MomentField(serializers.DateTimeField):
    """A moment with its zone: without one it would mean another in each place."""

    default_error_messages = {"invalid": "A time is given with its zone, as in 2026-12-24T18:00:00Z."}

    def enforce_timezone(self, value: datetime) -> datetime:
        """Return the moment in our zone; refuse one that says none, which DRF would take for ours."""
        if value.tzinfo is None:
            self.fail("invalid")
        return super().enforce_timezone(value)
