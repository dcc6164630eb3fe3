"""What was answered to a publish that carried a key."""

from django.db import models

from subscriptions.models import Publisher


class IdempotencyKey(models.Model):
    """One publisher's key, what was published under it and what was answered (behaviour 2.6)."""

    publisher = models.ForeignKey(Publisher, models.CASCADE, null=True, related_name="+")
    """None: published with a management key."""
    key = models.CharField(max_length=255)
    fingerprint = models.BinaryField(max_length=32)
    """SHA-256 over all that makes two publishes the same."""
    message_id = models.BigIntegerField()
    outcome = models.CharField(max_length=16)
    deliveries_count = models.PositiveIntegerField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="idempotency_key", fields=["publisher", "key"], nulls_distinct=False)
        ]

    def __str__(self) -> str:
        return self.key
