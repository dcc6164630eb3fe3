"""Messages: what was published, under which idempotency keys, and counts of volatile ones."""

from enum import StrEnum

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from delivery.statuses import MESSAGE_ID_PREFIX
from subscriptions.models import EventType, Publisher, Subscription


class MessageOutcome(models.TextChoices):
    """What became of a message as a whole (contract 2.14)."""

    ROUTED = "ROUTED", "Routed"
    """At least one subscription qualified."""

    UNROUTED = "UNROUTED", "Nobody wants it"
    """No subscription qualified."""

    DISCARDED = "DISCARDED", "Not wanted there"
    """Its destination exists, but none of its subscriptions qualified."""

    DEAD_LETTERED = "DEAD_LETTERED", "No such subscriber"
    """Its destination is unknown."""


class Message(models.Model):
    """One published event: immutable, stored once, its bytes untouched (contract 2.5).

    Partitioned by `id`, whose first digits are the day: `YYMMDD · 10^10 + n`.
    """

    event_type = models.ForeignKey(EventType, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    publisher = models.ForeignKey(Publisher, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    body = models.BinaryField()
    size = models.IntegerField()
    content_type = models.CharField(max_length=255)
    headers = models.JSONField(default=list)
    """Pairs of name and value in the publisher's order, without what is never kept (contract 2.11)."""
    filter_string = models.TextField(null=True)  # noqa: DJ001 - absent and empty differ
    answers = models.BigIntegerField(null=True)
    """Of a reply to a callback: the message that it answers; None for what was published."""
    destination = models.CharField(max_length=255, null=True)  # noqa: DJ001 - None: it was published for everybody
    """The subscriber that alone it is for, or `default` (contract 2.8)."""
    expires_at = models.DateTimeField(null=True)
    """When its time to live ends (contract 2.10)."""
    not_before = models.DateTimeField(null=True)
    """Before when it is not sent (contract 2.13)."""
    copy_of = models.BigIntegerField(null=True)
    """The message that somebody resubmitted as this one, its body edited or not (contract 5.8)."""
    outcome = models.CharField(max_length=16, choices=MessageOutcome)
    deliveries_count = models.IntegerField(default=0)
    published_at = models.DateTimeField(db_default=Now())

    class Meta:
        permissions = [("view_payload", "Can see bodies and headers, of messages and of answers")]
        constraints = [models.CheckConstraint(name="message_outcome", condition=Q(outcome__in=MessageOutcome.values))]

    def __str__(self) -> str:
        return f"{MESSAGE_ID_PREFIX}{self.pk}"


class IdempotencyKey(models.Model):
    """One publisher's key, what was published under it and what was answered (contract 2.6)."""

    publisher = models.ForeignKey(Publisher, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    """None: published with a management key."""
    key = models.CharField(max_length=255)
    fingerprint = models.BinaryField(max_length=32)
    """SHA-256 over all that makes two publishes the same."""
    message_id = models.BigIntegerField("message ID")
    outcome = models.CharField(max_length=16)
    deliveries_count = models.PositiveIntegerField()
    expires_at = models.DateTimeField(db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(name="idempotency_key", fields=["key", "publisher"], nulls_distinct=False)
        ]

    def __str__(self) -> str:
        return f"key of message {self.message_id}"


class VolatileOutcome(StrEnum):
    """What became of a volatile message on its way to one subscription (contract 2.9): a column each."""

    FILTERED = "filtered"
    """The subscription's filter failed."""

    DELIVERED = "delivered"
    """The endpoint answered 2xx."""

    REFUSED = "refused"
    """The endpoint answered something else."""

    NO_ANSWER = "no_answer"
    """It did not answer."""

    NOT_ALLOWED = "not_allowed"
    """Nothing is sent to its address."""

    SKIPPED = "skipped"
    """The subscription was not sent by then, or its script brought nothing to send."""

    EXPIRED = "expired"
    """Its time to live was over, or it had waited for a worker for too long."""

    DROPPED = "dropped"
    """Too many were in flight, or its subscription's rate limit left no room."""

    LOST = "lost"
    """The worker stopped, or failed, before there was an answer."""


class VolatileCount(models.Model):
    """How many were published in one hour, and what became of them; all there is of them.

    A row without a subscription counts messages, one with a subscription its share of them. Exact but for the last
    second of a process that was killed.
    """

    hour = models.DateTimeField()
    """Its beginning; what becomes of a message is counted in the hour of its publishing."""
    event_type = models.ForeignKey(EventType, models.DO_NOTHING, db_constraint=False, db_index=False)
    subscription = models.ForeignKey(Subscription, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    accepted = models.BigIntegerField(default=0, db_default=0)
    filtered = models.BigIntegerField(default=0, db_default=0)
    delivered = models.BigIntegerField(default=0, db_default=0)
    refused = models.BigIntegerField(default=0, db_default=0)
    no_answer = models.BigIntegerField(default=0, db_default=0)
    not_allowed = models.BigIntegerField(default=0, db_default=0)
    skipped = models.BigIntegerField(default=0, db_default=0)
    expired = models.BigIntegerField(default=0, db_default=0)
    dropped = models.BigIntegerField(default=0, db_default=0)
    lost = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                name="volatile_count", fields=["hour", "event_type", "subscription"], nulls_distinct=False
            ),
        ]

    def __str__(self) -> str:
        return f"{self.accepted} accepted"

    @property
    def unaccounted(self) -> int | None:
        """How many have no known outcome: they wait or are in flight, or were lost with a process or Redis."""
        if self.subscription_id is None:
            return None
        known = sum(int(getattr(self, outcome)) for outcome in VolatileOutcome)
        return max(0, self.accepted - known)
