"""What a subscription is for: an event type or a pattern, and which of its messages."""

from django.db import models
from django.db.models import Q

from subscriptions.filter_terms import NO_TERM
from subscriptions.filters import validate_filter
from subscriptions.headers import validate_filter_string
from subscriptions.models.event_types import EventKind, EventType
from subscriptions.models.filter_terms import FilterTermField
from subscriptions.names import MAX_NAME_LENGTH
from subscriptions.patterns import PATTERN_PATTERN, validate_pattern

MAX_FILTER_STRING_LENGTH = 4096


class Wanting(models.Model):
    """What a subscription says about the messages that it wants (behaviour 1.9, 2.2)."""

    event_type = models.ForeignKey(EventType, models.PROTECT, null=True, blank=True, related_name="subscriptions")
    kind = models.CharField(max_length=8, choices=EventKind, db_default=EventKind.TOPIC, editable=False)
    """Its event type's, TOPIC for a pattern; the database writes it."""
    event_pattern = models.CharField(
        max_length=MAX_NAME_LENGTH,
        blank=True,
        default="",
        validators=[validate_pattern],
        help_text="Instead of an event type: TeamForge.Artifact.* means every TOPIC event type that begins so; * all.",
    )
    header_filter_string = models.CharField(
        max_length=MAX_FILTER_STRING_LENGTH,
        blank=True,
        default="",
        validators=[validate_filter_string],
        help_text="Only messages whose FILTER_STRING header is exactly this; empty: all.",
    )
    filter = models.TextField(
        blank=True,
        default="",
        validators=[validate_filter],
        help_text="Only messages for which this is true, such as $$->'Body'->>'state' = 'open'; empty: all.",
    )
    filter_term = FilterTermField(default=NO_TERM, editable=False, db_collation="C")

    class Meta:
        abstract = True

    @property
    def events(self) -> str:
        """What it is for: an event type's name, or a pattern."""
        return self.event_pattern or str(self.event_type)


ONE_WISH = (
    models.CheckConstraint(
        name="subscription_event",
        violation_error_message="A subscription is for one event type or for one pattern, not for both.",
        condition=Q(event_type__isnull=False, event_pattern="") | Q(event_type=None) & ~Q(event_pattern=""),
    ),
    models.CheckConstraint(
        name="subscription_pattern", condition=Q(event_pattern="") | Q(event_pattern__regex=PATTERN_PATTERN)
    ),
)
