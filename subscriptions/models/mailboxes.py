"""How a subscriber's mailbox hands out what its PULL subscriptions get (behaviour 9)."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

ACK_SECONDS = (1, 43_200)
"""From one second to twelve hours."""
MOST_REDELIVERIES = 1_000


class Mailboxed(models.Model):
    """What a subscriber says about its mailbox; only PULL subscriptions use it."""

    mailbox_ordered = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Mailbox: hand out one message at a time, nothing newer while it is in flight.",
    )
    ack_seconds = models.PositiveIntegerField(
        default=30,
        db_default=30,
        validators=[MinValueValidator(ACK_SECONDS[0]), MaxValueValidator(ACK_SECONDS[1])],
        help_text="Mailbox: seconds after which a message that was not acknowledged is available again.",
    )
    max_redeliveries = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MaxValueValidator(MOST_REDELIVERIES)],
        help_text="Mailbox: how often a message is handed out again before it has FAILED; empty: without limit. "
        "Lowered, it counts from the next hand-out on.",
    )

    class Meta:
        abstract = True


MAILBOX_LIMITS = (
    models.CheckConstraint(name="subscriber_ack_seconds", condition=Q(ack_seconds__range=ACK_SECONDS)),
    models.CheckConstraint(
        name="subscriber_max_redeliveries", condition=Q(max_redeliveries__range=(0, MOST_REDELIVERIES))
    ),
)
"""A null passes."""
