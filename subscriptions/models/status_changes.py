"""When somebody was wanted and when not."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from subscriptions.models.subscribers import Status


class StatusChange(models.Model):
    """One change of a subscription's status, or of a whole subscriber's; append-only, written by the database.

    What else changes whether there is an order to keep is noted too, with the status there is meanwhile: the beginning
    and the end of a subscription's pause, and whether a subscriber's deliveries are sent in order.

    Without foreign keys: what happened stays true when what it happened to is deleted.
    """

    subscriber_id = models.BigIntegerField()
    subscription_id = models.BigIntegerField(null=True)
    """None: the whole subscriber's."""
    status = models.CharField(max_length=8, choices=Status)
    """The one from then on."""
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            models.Index(name="status_change_at", fields=["at"]),
            models.Index(name="status_change_newest", fields=["subscriber_id", "subscription_id", "at"]),
        ]
        constraints = [models.CheckConstraint(name="status_change_status", condition=Q(status__in=Status.values))]

    def __str__(self) -> str:
        return f"{self.status} at {self.at}"
