"""What became of messages that are kept nowhere."""

from django.db import models

from subscriptions.models import EventType, Subscription


class VolatileOutcome(models.TextChoices):
    """What became of a volatile message, or of one of its requests (behaviour 2.9)."""

    ACCEPTED = "accepted"
    """Published; counted without a subscription."""

    FILTERED = "filtered"
    """The subscription's filter failed."""

    DELIVERED = "delivered"
    """The endpoint answered 2xx."""

    REFUSED = "refused"
    """The endpoint answered something else."""

    NO_ANSWER = "no_answer"
    """It did not answer."""

    SKIPPED = "skipped"
    """The subscription was not sent by then, or its script brought nothing to send."""

    DROPPED = "dropped"
    """Too many were under way."""


class VolatileCount(models.Model):
    """How many in one hour; all there is of them, and exact but for the last second of a process that was killed."""

    hour = models.DateTimeField()
    """Its beginning."""
    event_type = models.ForeignKey(EventType, models.DO_NOTHING, db_constraint=False, db_index=False)
    subscription = models.ForeignKey(Subscription, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    outcome = models.CharField(max_length=10, choices=VolatileOutcome)
    count = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="volatile_count",
                fields=["hour", "event_type", "subscription", "outcome"],
                nulls_distinct=False,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.count} {self.outcome}"
