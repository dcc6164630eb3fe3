"""Ordered work of one owner."""

from typing import Final

from django.db import models
from django.db.models import Case, Q, Value, When
from django.db.models.functions import Cast, Concat, Now

from delivery.models.callbacks import Callback
from subscriptions.models import Subscriber


class Lane(models.TextChoices):
    """What kind of work a line has, and so who its owner is."""

    MAIN = "main", "Topic"
    """A subscriber's deliveries in the order of publishing (behaviour 4.1)."""

    RETRY = "retry", "Retry"
    """Those of them that are tried again apart, by when they are due: what follows them waits for none (5.3)."""

    QUEUE = "queue", "Queue"
    """The message groups of one QUEUE sender (behaviour 6.2)."""

    CALLBACK = "callback", "Callback"
    """The reply to one callback, on its way to the original URL (behaviour 6.8)."""


CELERY_QUEUE: Final = Case(
    When(lane=Lane.RETRY, then=Value("retry")),
    When(lane=Lane.QUEUE, then=Concat(Value("queue."), Cast("sender", models.TextField()))),
    When(lane=Lane.CALLBACK, then=Value("callbacks")),
    default=Value("topic"),
    output_field=models.TextField(),
)
OWNED: Final = (
    Q(lane__in=[Lane.MAIN, Lane.RETRY], subscriber__isnull=False, sender=None, callback=None)
    | Q(lane=Lane.QUEUE, subscriber=None, sender__isnull=False, callback=None)
    | Q(lane=Lane.CALLBACK, subscriber=None, sender=None, callback__isnull=False)
)


class Line(models.Model):
    """One owner's ordered work: who drives it (lease, epoch), its last number, and why and until when it waits.

    No form touches it. `lease_until` is null when the line was let go cleanly; a lease that has run out means its
    driver vanished with requests under way.
    """

    lane = models.CharField(max_length=8, choices=Lane, default=Lane.MAIN, db_default=Lane.MAIN)
    subscriber = models.ForeignKey(Subscriber, models.CASCADE, null=True, related_name="lines")
    sender = models.PositiveSmallIntegerField(null=True)
    """Of a QUEUE sender: which of them, from 0 on."""
    callback = models.OneToOneField(Callback, models.CASCADE, null=True, related_name="line")
    queue = models.GeneratedField(expression=CELERY_QUEUE, output_field=models.TextField(), db_persist=True)
    """The Celery queue that its turns are tasks of."""
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
    paused_told_at = models.DateTimeField(null=True)
    """When it was announced that the line is held; None: it was not, or that it goes on was announced since (5.7)."""

    class Meta:
        constraints = [
            models.UniqueConstraint(name="line_lane", fields=["subscriber", "lane"]),
            models.UniqueConstraint(name="line_sender", fields=["sender"]),
            models.CheckConstraint(name="line_owner", condition=OWNED),
        ]
        indexes = [
            models.Index(name="line_leased", fields=["lease_until"], condition=Q(lease_until__isnull=False)),
            models.Index(
                name="line_told",
                fields=["id"],
                condition=Q(held_since__isnull=False) | Q(paused_told_at__isnull=False),
            ),
            # Those with a reply to be delivered; in it what is due is found however many wait for their endpoint.
            models.Index(
                name="line_of_callback", fields=["due_at"], condition=Q(lane=Lane.CALLBACK, head_id__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.owner} ({Lane(self.lane).label.lower()})"

    @property
    def owner(self) -> str:
        """Whose work it is."""
        if self.lane == Lane.QUEUE:
            return f"queue sender {self.sender}"
        return f"callback {self.callback_id}" if self.lane == Lane.CALLBACK else str(self.subscriber)


class LineEventKind(models.TextChoices):
    """What a line's history tells."""

    NUMBER_UNCERTAIN = "NUMBER_UNCERTAIN"
    """A number that may never have been sent: its delivery ended after an unclean end (behaviour 4.10)."""

    RELEASED = "RELEASED"
    """What was HELD may be sent: later than what was published after it (behaviour 3.6, 4.10)."""

    PAUSED = "PAUSED"
    """One of its subscriptions is not sent for the time being: by hand, or its retries are used up (1.6, 5.6)."""

    RESUMED = "RESUMED"
    """That one is sent again."""


class LineEvent(models.Model):
    """One thing worth knowing in a line's history; append-only.

    Without a constraint on the line, whose check would wait for whoever claims it: a driver waits for nobody.
    """

    line = models.ForeignKey(Line, models.CASCADE, related_name="events", db_constraint=False)
    at = models.DateTimeField(db_default=Now())
    kind = models.CharField(max_length=24, choices=LineEventKind)
    sequence = models.BigIntegerField(null=True)
    delivery_id = models.BigIntegerField(null=True)
    reason = models.TextField(default="")

    class Meta:
        constraints = [models.CheckConstraint(name="line_event_kind", condition=Q(kind__in=LineEventKind.values))]

    def __str__(self) -> str:
        return f"{self.kind} {self.sequence}"
