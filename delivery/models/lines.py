"""Ordered work of one owner."""

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from subscriptions.models import Subscriber


class Lane(models.TextChoices):
    """Which of a subscriber's lines."""

    MAIN = "main"
    """Its deliveries in the order of publishing."""


class Line(models.Model):
    """One subscriber's ordered work: who drives it (lease, epoch), its last number, and why and until when it waits.

    No form touches it. `lease_until` is null when the line was let go cleanly; a lease that has run out means its
    driver vanished with a request under way.
    """

    subscriber = models.ForeignKey(Subscriber, models.CASCADE, related_name="lines")
    lane = models.CharField(max_length=8, choices=Lane, default=Lane.MAIN, db_default=Lane.MAIN)
    epoch = models.BigIntegerField(default=0, db_default=0)
    """Raised at each claim; whoever settles under an older one is fenced off."""
    lease_until = models.DateTimeField(null=True)
    worker = models.CharField(max_length=255, default="", db_default="")
    last_sequence = models.BigIntegerField(default=0, db_default=0)
    head_id = models.BigIntegerField(null=True)
    """The delivery that must not be overtaken: it goes first, alone (behaviour 4.7, 4.8)."""
    due_at = models.DateTimeField(null=True)
    """When a held line tries again."""
    held_since = models.DateTimeField(null=True)
    held_reason = models.TextField(default="", db_default="")
    held_stamp = models.BigIntegerField(default=0, db_default=0)
    """Versions of the head's subscription and subscriber when the line was held; others make it due at once."""
    aside_next = models.BooleanField(default=False, db_default=False)
    """Whose turn it is: of those set aside, or of those never sent (behaviour 4.6)."""
    failures = models.PositiveIntegerField(default=0, db_default=0)
    """Unsuccessful tries of the head in a row; the pause grows with them."""

    class Meta:
        constraints = [
            models.UniqueConstraint(name="line_lane", fields=["subscriber", "lane"]),
            models.CheckConstraint(name="line_known_lane", condition=Q(lane__in=Lane.values)),
        ]
        indexes = [models.Index(name="line_leased", fields=["lease_until"], condition=Q(lease_until__isnull=False))]

    def __str__(self) -> str:
        return f"{self.subscriber} ({self.lane})"


class LineEventKind(models.TextChoices):
    """What a line's history tells."""

    NUMBER_UNCERTAIN = "NUMBER_UNCERTAIN"
    """A number that may never have been sent: its delivery ended after an unclean end (behaviour 4.10)."""


class LineEvent(models.Model):
    """One thing worth knowing in a line's history; append-only."""

    line = models.ForeignKey(Line, models.CASCADE, related_name="events")
    at = models.DateTimeField(db_default=Now())
    kind = models.CharField(max_length=24, choices=LineEventKind)
    sequence = models.BigIntegerField(null=True)
    delivery_id = models.BigIntegerField(null=True)
    reason = models.TextField(default="")

    class Meta:
        constraints = [models.CheckConstraint(name="line_event_kind", condition=Q(kind__in=LineEventKind.values))]

    def __str__(self) -> str:
        return f"{self.kind} {self.sequence}"
