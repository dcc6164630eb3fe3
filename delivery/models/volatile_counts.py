"""What became of messages that are kept nowhere."""

from enum import StrEnum

from django.db import models

from subscriptions.models import EventType, Subscription


class VolatileOutcome(StrEnum):
    """What became of a volatile message on its way to one subscription (behaviour 2.9): a column each."""

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
    """Too many were under way, or its subscription's rate limit left no room."""

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
        """How many nobody can tell anything of: they wait or are under way, or were lost with a process or Redis."""
        if self.subscription_id is None:
            return None
        known = sum(int(getattr(self, outcome)) for outcome in VolatileOutcome)
        return max(0, self.accepted - known)
