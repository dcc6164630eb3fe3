"""Event types with their example payload and schema, and publishers."""

from typing import Final, Self

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from broker_project.core.json import is_json
from subscriptions.headers import validate_content_type
from subscriptions.models.base import Versioned, checks, field_error
from subscriptions.names import MAX_NAME_LENGTH, NAME_PATTERN, OWN_EVENTS, is_own, validate_name
from subscriptions.schemas import BrokenSchema, compiled
from subscriptions.schemas.exact_json import UnreadableJson, exact_json

MAX_SHOWN: Final = 20
"""Violations of one sample that are listed."""


def check_sample(content_type: str, sample: str, schema: object) -> None:
    """Raise `ValidationError` unless payloads like `sample`, if not empty, satisfy `schema`, if not None."""
    usable = None
    if schema is not None:
        if not is_json(content_type):
            raise ValidationError({"schema": f"Only JSON has a schema, and the content type is {content_type}."})
        try:
            usable = compiled(schema)
        except BrokenSchema as broken:
            raise ValidationError({"schema": str(broken)}) from None
    if not sample or not is_json(content_type):
        return
    try:
        exact_json(sample)
    except UnreadableJson as broken:
        text = f"This event type's payloads are JSON, and the sample is not: {broken}."
        raise ValidationError({"sample": text}) from None
    if usable and (violations := usable.violations(sample)):
        listed = [f"At {one.pointer or 'the top'}: {one.message}." for one in violations[:MAX_SHOWN]]
        raise ValidationError({"sample": ["The sample does not satisfy the schema.", *listed]})


class EventKind(models.TextChoices):
    """How messages of an event type are routed."""

    TOPIC = "TOPIC"
    """Every qualifying subscription gets the message, in order per subscriber."""

    QUEUE = "QUEUE"
    """One endpoint of each group of qualifying subscriptions with the same filter gets it."""

    SYNC = "SYNC"
    """The publisher gets the endpoint's answer."""


class EventTypeQuerySet(models.QuerySet["EventType"]):
    """Event types, by origin."""

    def configured(self) -> Self:
        """Keep those that people have made; the broker's own exist in every installation."""
        return self.exclude(name__startswith=OWN_EVENTS)


class EventType(Versioned):
    """One kind of event that may be published and subscribed to; name and kind are fixed (contract 1.1)."""

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
        constraints = checks(event_type_name=Q(name__regex=NAME_PATTERN), event_type_kind=Q(kind__in=EventKind.values))

    def __str__(self) -> str:
        return self.name

    @property
    def is_built_in(self) -> bool:
        """Whether it is one of the broker's own."""
        return is_own(self.name)

    def clean(self) -> None:
        """Raise `ValidationError` for a reserved name, or unless content type, schema and sample go together."""
        if is_own(self.name):
            raise field_error(["name"], f"Names that begin with {OWN_EVENTS} are reserved for the broker's own events.")
        check_sample(self.content_type, self.sample, self.schema)


class Publisher(Versioned):
    """One application that may publish all event types, or only those named (contract 1.2)."""

    name = models.CharField(max_length=MAX_NAME_LENGTH, unique=True, validators=[validate_name])
    description = models.TextField(blank=True, default="")
    event_types = models.ManyToManyField(
        EventType, blank=True, related_name="publishers", help_text="Empty: it may publish every event type."
    )
    max_open_messages = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Maximum messages with unfinished deliveries; beyond it publishing is refused; empty: no limit.",
    )

    class Meta:
        constraints = checks(
            publisher_name=Q(name__regex=NAME_PATTERN), publisher_max_open_messages=Q(max_open_messages__gte=1)
        )

    def __str__(self) -> str:
        return self.name
