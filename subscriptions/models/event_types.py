"""Event types with their example payload and schema, and publishers."""

from typing import Final, Self

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from broker_project.core.json import is_json
from subscriptions.headers import validate_content_type
from subscriptions.models.base import Versioned
from subscriptions.names import MAX_NAME_LENGTH, NAME_PATTERN, OWN_EVENTS, is_own, validate_name
from subscriptions.schemas import BrokenSchema, Schema, compiled
from subscriptions.schemas.exact_json import UnreadableJson, exact_json

MAX_SHOWN: Final = 20
"""Violations told of one sample."""


def check_sample(content_type: str, sample: str, schema: object) -> None:
    """Raise `ValidationError` unless payloads like `sample` ("": none) could be published under `schema` (None: none).

    Its messages are those of the fields `schema` and `sample`.
    """
    usable = None if schema is None else _usable(content_type, schema)
    if not sample or not is_json(content_type):
        return
    try:
        exact_json(sample)
    except UnreadableJson as broken:
        raise _refused("sample", [f"This event type's payloads are JSON, and the sample is not: {broken}."]) from None
    violations = usable.violations(sample) if usable else []
    if violations:
        told = [f"At {one.pointer or 'the top'}: {one.message}." for one in violations[:MAX_SHOWN]]
        raise _refused("sample", ["The sample does not satisfy the schema.", *told])


def _usable(content_type: str, schema: object) -> Schema:
    if not is_json(content_type):
        raise _refused("schema", [f"Only JSON has a schema, and the content type is {content_type}."])
    try:
        return compiled(schema)
    except BrokenSchema as broken:
        raise _refused("schema", [str(broken)]) from None


def _refused(field: str, messages: list[str]) -> ValidationError:
    return ValidationError({field: messages})


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


class Publisher(Versioned):
    """One application that may publish: every event type, or only those named (contract 1.2)."""

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
