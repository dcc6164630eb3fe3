"""What can be published."""

from typing import Self

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from subscriptions.headers import validate_content_type
from subscriptions.models.samples import check_sample
from subscriptions.models.versioned import Versioned
from subscriptions.names import MAX_NAME_LENGTH, NAME_PATTERN, OWN_EVENTS, is_own, validate_name


class EventKind(models.TextChoices):
    """How messages of an event type travel."""

    TOPIC = "TOPIC"
    """Every qualifying subscription gets the message, each subscriber's in order."""

    QUEUE = "QUEUE"
    """One endpoint of each group of like subscriptions takes it."""

    SYNC = "SYNC"
    """The endpoint's answer is the publisher's answer."""


class EventTypeQuerySet(models.QuerySet["EventType"]):
    """Event types, by whose they are."""

    def configured(self) -> Self:
        """Keep those that people have made: not the broker's own, which are there everywhere."""
        return self.exclude(name__startswith=OWN_EVENTS)


class EventType(Versioned):
    """One kind of event that may be published and subscribed to; name and kind are fixed (behaviour 1.1)."""

    name = models.CharField(max_length=MAX_NAME_LENGTH, unique=True, validators=[validate_name])
    kind = models.CharField(max_length=8, choices=EventKind, default=EventKind.TOPIC)
    content_type = models.CharField(max_length=255, default="application/json", validators=[validate_content_type])
    description = models.TextField(blank=True, default="")
    sample = models.TextField(blank=True, default="", help_text="A payload as publishers send it.")
    schema = models.JSONField(
        null=True, blank=True, default=None, help_text="A JSON Schema that every payload must satisfy; empty: none."
    )

    objects = EventTypeQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(name="event_type_name", condition=Q(name__regex=NAME_PATTERN)),
            models.CheckConstraint(name="event_type_kind", condition=Q(kind__in=EventKind.values)),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def came_installed(self) -> bool:
        """Whether it is one of the broker's own."""
        return is_own(self.name)

    def clean(self) -> None:
        """Raise `ValidationError` for a name of the broker's own, or unless type, schema and sample go together."""
        if is_own(self.name):
            text = f"Names that begin with {OWN_EVENTS} are those of the broker's own event types."
            raise ValidationError({"name": ValidationError(text, code="name")})
        check_sample(self.content_type, self.sample, self.schema)
