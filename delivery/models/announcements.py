"""What is yet to be announced as an event of the broker's own."""

from django.db import models
from django.db.models.functions import Now

from delivery.models.lines import Line
from subscriptions.models import Subscription


class Announcement(models.Model):
    """One thing that has gone wrong, or goes right again, to be published as a message (behaviour 5.7).

    Written in the transaction of its cause and deleted in that of its message: each cause has exactly one, in order
    of id.
    """

    kind = models.CharField(max_length=32)
    """The event type's name: `Broker.…`."""
    line = models.ForeignKey(Line, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    subscription = models.ForeignKey(Subscription, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    delivery_id = models.BigIntegerField(null=True)
    """The delivery that has ended, or whose outcome has stopped the others."""
    details = models.JSONField(default=dict, db_default={})
    """What the event says beyond the names and ids: status, reason, number of attempts, times."""
    at = models.DateTimeField(db_default=Now())
    """When it happened."""

    def __str__(self) -> str:
        return f"{self.kind} {self.pk}"
