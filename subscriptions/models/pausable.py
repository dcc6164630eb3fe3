"""How a subscription pauses: it still qualifies, and is not sent anything (behaviour 1.6)."""

from collections.abc import Collection

from django.db import models
from django.db.models import Q

from subscriptions.models.sent import DeliveryMode
from subscriptions.models.subscribers import Status


class PausedBy(models.TextChoices):
    """What paused it, and so what ends the pause."""

    HAND = "HAND"
    """A person, who resumes it."""

    POLICY = "POLICY"
    """Its retry policy; the first probe that works resumes it (behaviour 5.6)."""

    BACKFILL = "BACKFILL"
    """What it gets of older messages; it resumes when they are all there (behaviour 5.8)."""


class Pausable(models.Model):
    """What a subscription knows of its pause, which the broker may begin and end, unlike its `status`."""

    paused_since = models.DateTimeField(null=True, editable=False)
    """None: it is not paused."""
    paused_by = models.CharField(max_length=8, choices=PausedBy, default="", db_default="", editable=False)
    paused_reason = models.TextField(default="", db_default="", editable=False)
    half_open = models.BooleanField(default=False, db_default=False, editable=False)
    """Paused, but for its oldest delivery: what becomes of that decides."""
    probe_due_at = models.DateTimeField(null=True, editable=False)
    is_sending = models.GeneratedField(
        expression=Q(status=Status.ACTIVE)  # type: ignore[arg-type]
        & (Q(paused_since=None) | Q(half_open=True))
        & Q(delivery_mode=DeliveryMode.PUSH),
        output_field=models.BooleanField(),
        db_persist=True,
    )
    """Whether it is sent anything now; what statements ask, and not kept up to date in objects that change."""
    is_fetchable = models.GeneratedField(
        expression=Q(status=Status.ACTIVE, paused_since=None, delivery_mode=DeliveryMode.PULL),  # type: ignore[arg-type]
        output_field=models.BooleanField(),
        db_persist=True,
    )
    """Whether what it has is handed out by its subscriber's mailbox now (behaviour 9.1)."""

    class Meta:
        abstract = True

    def end_suspension(self) -> Collection[str]:
        """Take back its retry policy's pause, if that is what it is in; return the fields changed."""
        if self.paused_by != PausedBy.POLICY:
            return ()
        goes_on = {"paused_since": None, "paused_by": "", "paused_reason": "", "half_open": False, "probe_due_at": None}
        for name, value in goes_on.items():
            setattr(self, name, value)
        return goes_on.keys()


PROBES = models.Index(
    name="subscription_probes",
    fields=["probe_due_at"],
    condition=Q(probe_due_at__isnull=False) & ~Q(status=Status.INACTIVE),
)
"""Without those that are due for as long as they are not active."""
PAUSES_ARE_WHOLE = models.CheckConstraint(
    name="subscription_pause",
    condition=Q(paused_since=None, paused_by="", paused_reason="", half_open=False, probe_due_at=None)
    | Q(paused_since__isnull=False, paused_by__in=PausedBy.values),
)
