"""What was published."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from subscriptions.models import EventType, Publisher


class MessageOutcome(models.TextChoices):
    """What became of a message as a whole (behaviour 2.14)."""

    ROUTED = "ROUTED"
    """At least one subscription qualified."""

    UNROUTED = "UNROUTED"
    """No subscription qualified."""

    DISCARDED = "DISCARDED"
    """Its destination exists, but none of its subscriptions qualified."""

    DEAD_LETTERED = "DEAD_LETTERED"
    """Its destination is unknown."""


class Message(models.Model):
    """One published event: immutable, stored once, its bytes untouched (behaviour 2.5).

    Partitioned by `id`, whose first digits are the day: `YYMMDD · 10^10 + n`.
    """

    event_type = models.ForeignKey(EventType, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    publisher = models.ForeignKey(Publisher, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    body = models.BinaryField()
    size = models.IntegerField()
    content_type = models.CharField(max_length=255)
    headers = models.JSONField(default=list)
    """Pairs of name and value in the publisher's order, without what is never kept (behaviour 2.11)."""
    filter_string = models.TextField(null=True)  # noqa: DJ001 - absent and empty differ
    answers = models.BigIntegerField(null=True)
    """Of a reply to a callback: the message that it answers; None for what was published."""
    destination = models.CharField(max_length=255, null=True)  # noqa: DJ001 - None: it was published for everybody
    """The subscriber that alone it is for, or `default` (behaviour 2.8)."""
    expires_at = models.DateTimeField(null=True)
    """When its time to live ends (behaviour 2.10)."""
    not_before = models.DateTimeField(null=True)
    """Before when it is not sent (behaviour 2.13)."""
    copy_of = models.BigIntegerField(null=True)
    """The message that somebody resubmitted as this one, its body edited or not (behaviour 5.8)."""
    outcome = models.CharField(max_length=16, choices=MessageOutcome)
    deliveries_count = models.IntegerField(default=0)
    published_at = models.DateTimeField(db_default=Now())

    class Meta:
        permissions = [("view_payload", "Can see bodies and headers, of messages and of answers")]
        constraints = [models.CheckConstraint(name="message_outcome", condition=Q(outcome__in=MessageOutcome.values))]

    def __str__(self) -> str:
        return f"message {self.pk}"
