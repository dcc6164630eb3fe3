"""Who publishes."""

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from subscriptions.models.event_types import EventType
from subscriptions.models.versioned import Versioned
from subscriptions.names import MAX_NAME_LENGTH, NAME_PATTERN, validate_name


class Publisher(Versioned):
    """One application that may publish: every event type, or only those named (behaviour 1.2)."""

    name = models.CharField(max_length=MAX_NAME_LENGTH, unique=True, validators=[validate_name])
    description = models.TextField(blank=True, default="")
    event_types = models.ManyToManyField(
        EventType, blank=True, related_name="publishers", help_text="Empty: it may publish every event type."
    )
    max_open_messages = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="With so many messages that have unfinished deliveries it publishes no more; empty: no limit.",
    )

    class Meta:
        constraints = [
            models.CheckConstraint(name="publisher_name", condition=Q(name__regex=NAME_PATTERN)),
            models.CheckConstraint(name="publisher_max_open_messages", condition=Q(max_open_messages__gte=1)),
        ]

    def __str__(self) -> str:
        return self.name
