"""One QUEUE message for one group of like subscriptions."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models.functions import Now

from delivery.models.lines import Line
from delivery.models.messages import Message


class QueueGroup(models.Model):
    """One message for one group of subscriptions, of which exactly one is to take it (behaviour 6.3, 6.4).

    It is there as long as nobody has taken it: whoever deletes it has its one winner, and no other can come after it.
    Its deliveries name it by `group`, also when it is gone. It has the id of the first of them, so that whoever has
    the one finds the other.
    """

    message = models.ForeignKey(Message, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    line = models.ForeignKey(Line, models.DO_NOTHING, null=True, db_constraint=False, db_index=False)
    """Its sender."""
    delivery_ids = ArrayField(models.BigIntegerField())
    """A delivery for each of the group's subscriptions."""
    size = models.IntegerField()
    """Of the message's body, in bytes."""
    due_at = models.DateTimeField(null=True)
    """When it is tried again; None: not tried to the end yet.

    `UNTIL_RELEASED` while it is HELD, `UNTIL_ACTIVE` while it is parked.
    """
    cycles = models.PositiveIntegerField(default=0, db_default=0)
    """How often all its endpoints were tried in vain; the pause grows with it (behaviour 6.5)."""
    attempts = models.PositiveIntegerField(default=0, db_default=0)
    """How many requests it has had, over all its endpoints."""
    uncertain = models.BooleanField(default=False, db_default=False)
    """Whether the outcome of any of them is unknown: whoever is asked next is told so (behaviour 4.11)."""
    first_id = models.BigIntegerField(null=True)
    """The delivery whose request was under way at an unclean end: it goes first, to the same endpoint."""
    created_at = models.DateTimeField(db_default=Now())

    def __str__(self) -> str:
        return f"group {self.pk}"
