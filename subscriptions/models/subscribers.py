"""Subscribers, their mailbox settings, and when they changed status."""

from collections.abc import Collection

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from broker_project.core.encryption import SUBSCRIBER_HEADERS
from subscriptions.filters import validate_text_path
from subscriptions.headers import validate_headers
from subscriptions.models.base import EncryptedHeaders, WithHeaders, checks, field_error
from subscriptions.names import MAX_NAME_LENGTH, NAME_PATTERN, validate_name

ACK_SECONDS = (1, 43_200)
"""From one second to twelve hours."""
MAX_REDELIVERIES = 1_000
MAX_QUEUED_TO_SEND = 10_000
QUEUED_BYTES = (65_536, 8 * 1024 * 1024)
"""Up to a sixth of what all lines of a process hold together."""
MAX_REFILL_PERCENT = 90
"""With more, a line would read a page for almost every delivery."""
MAX_CONCURRENCY = 1_000
MAX_MAILBOX_DAYS = 36_500
"""A hundred years."""
MAX_PATH_LENGTH = 500
EACH_SUBSCRIBER = "default"
"""The destination that means each subscriber once (contract 2.8); no subscriber can have this name."""


class Status(models.TextChoices):
    """Whether messages are wanted; changed by people only, never by the broker (contract 1.6).

    A backfill that they start activates its subscription once its place is reserved, and inactivates it again if they
    cancel it.
    """

    ACTIVE = "ACTIVE"
    """Qualifies for new messages; pending ones are sent."""

    INACTIVE = "INACTIVE"
    """Does not qualify for new messages; pending ones are kept until it is active again (contract 1.7)."""


class Processing(models.TextChoices):
    """How a subscriber is sent its deliveries (contract 4.13)."""

    SERIAL = "SERIAL"
    """One at a time, in order."""

    CONCURRENT = "CONCURRENT"
    """Several at a time, in no order."""

    KEYED = "KEYED"
    """Several at a time, in order within each ordering key."""


class StatusChange(models.Model):
    """One change of the status of a subscription or a whole subscriber; append-only, written by the database.

    Also, with the present status: other changes of whether order is kept, which are the beginning and end of a
    subscription's pause or diversion and a change of a subscriber's processing. Without foreign keys: history outlives
    its subject.
    """

    subscriber_id = models.BigIntegerField()
    subscription_id = models.BigIntegerField(null=True)
    """None: of the whole subscriber."""
    status = models.CharField(max_length=8, choices=Status)
    """The new one."""
    processing_before = models.CharField(max_length=10, choices=Processing, blank=True, default="", db_default="")
    """A subscriber's until then; empty: of a subscription."""
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [
            models.Index(name="status_change_at", fields=["at"]),
            models.Index(name="status_change_newest", fields=["subscriber_id", "subscription_id", "at"]),
        ]
        constraints = checks(status_change_status=Q(status__in=Status.values))

    def __str__(self) -> str:
        return f"{self.status} at {self.at}"


class FormerDestination(models.Model):
    """What requests were made with until a change: those of one subscription, or all of a subscriber; append-only.

    Written with the change, so that requests can be shown as they were sent. Without values of headers, which nobody is
    shown, and without foreign keys, as `StatusChange`.
    """

    subscriber_id = models.BigIntegerField()
    subscription_id = models.BigIntegerField(null=True)
    """None: of the whole subscriber, which has only headers."""
    header_names = ArrayField(models.TextField())
    endpoint = models.TextField(blank=True)
    output = models.CharField(max_length=24, blank=True)
    retry_policy = models.TextField(blank=True)
    """The name of a subscription's policy; empty: it had none."""
    at = models.DateTimeField(db_default=Now())

    class Meta:
        indexes = [models.Index(name="former_destination", fields=["subscriber_id", "at"])]

    def __str__(self) -> str:
        return f"until {self.at}"


class Subscriber(WithHeaders):
    """One application that receives deliveries: one at a time, in order (contract 1.3), or several (4.13, 4.18)."""

    name = models.CharField(max_length=MAX_NAME_LENGTH, unique=True, validators=[validate_name])
    description = models.TextField(blank=True, default="")
    status = models.CharField(max_length=8, choices=Status, default=Status.ACTIVE)
    headers = EncryptedHeaders(
        purpose=SUBSCRIBER_HEADERS,
        blank=True,
        default=dict,
        validators=[validate_headers],
        help_text="Sent with every delivery. Values are never shown; null keeps the present one.",
    )
    max_queued_to_send = models.PositiveIntegerField(
        default=500,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_QUEUED_TO_SEND)],
        help_text="Maximum deliveries that its line has in memory.",
    )
    max_queued_bytes = models.PositiveIntegerField(
        default=1024 * 1024,
        db_default=1024 * 1024,
        validators=[MinValueValidator(QUEUED_BYTES[0]), MaxValueValidator(QUEUED_BYTES[1])],
        help_text="Maximum bytes of bodies that its line has in memory; one delivery is always allowed.",
    )
    refill_percent = models.PositiveSmallIntegerField(
        default=40,
        db_default=40,
        validators=[MaxValueValidator(MAX_REFILL_PERCENT)],
        help_text="Its line reads the next page when this percentage of the last one is left; 0: when none is.",
    )
    processing = models.CharField(
        max_length=10,
        choices=Processing,
        default=Processing.SERIAL,
        db_default=Processing.SERIAL,
        help_text="Serial: one at a time, in order. Concurrent: several, in no order. Keyed: several, in order within "
        "each ordering key.",
    )
    concurrency = models.PositiveSmallIntegerField(
        default=1,
        db_default=1,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_CONCURRENCY)],
        help_text="How many at a time, if concurrent or keyed.",
    )
    ordering_key = models.CharField(
        max_length=MAX_PATH_LENGTH,
        blank=True,
        default="",
        db_default="",
        validators=[validate_text_path],
        help_text="Where a message's ordering key is, as a path of the filter language: $$->'Body'->'order'->>'id', or "
        "$$->'Header'->'X-Order'->>0. It is read when a message is published.",
    )
    keyless_until = models.BigIntegerField(null=True, editable=False)
    """The newest delivery without an ordering key when it first named a path; 0: it began with one; None: it never did.

    All newer ones have a key, if only the empty one. Set by the database, and never changed.
    """
    mailbox_ordered = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Mailbox: one message at a time can be fetched, nothing newer while it is in flight.",
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
        validators=[MaxValueValidator(MAX_REDELIVERIES)],
        help_text="Mailbox: how often a message is fetched again before it has FAILED; empty: without limit. "
        "A lower limit applies from the next fetch on.",
    )
    mailbox_days = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_MAILBOX_DAYS)],
        help_text="Mailbox: days from its publishing after which an unread message has EXPIRED; empty: as the broker "
        "is set. It counts at once, also for messages that are there already.",
    )

    class Meta:
        constraints = checks(
            subscriber_name=Q(name__regex=NAME_PATTERN),
            subscriber_status=Q(status__in=Status.values),
            subscriber_max_queued_to_send=Q(max_queued_to_send__range=(1, MAX_QUEUED_TO_SEND)),
            subscriber_max_queued_bytes=Q(max_queued_bytes__range=QUEUED_BYTES),
            subscriber_refill_percent=Q(refill_percent__range=(0, MAX_REFILL_PERCENT)),
            subscriber_processing=Q(processing__in=Processing.values),
            subscriber_ordering_key=~Q(processing=Processing.KEYED, ordering_key=""),
            subscriber_concurrency=Q(concurrency__range=(1, MAX_CONCURRENCY)),
            subscriber_ack_seconds=Q(ack_seconds__range=ACK_SECONDS),
            subscriber_mailbox_days=Q(mailbox_days__range=(1, MAX_MAILBOX_DAYS)),
            subscriber_max_redeliveries=Q(max_redeliveries__range=(0, MAX_REDELIVERIES)),  # null passes
        )

    def __str__(self) -> str:
        return self.name

    def remember(self, changing: Collection[str]) -> None:
        """Note the headers that its requests were sent with."""
        if "headers" in changing:
            FormerDestination.objects.create(subscriber_id=self.pk, header_names=self.header_names or [])

    def clean(self) -> None:
        """Raise `ValidationError` for a reserved name, and for a concurrency that its processing does not have."""
        if self.name == EACH_SUBSCRIBER:
            raise field_error(["name"], f"{EACH_SUBSCRIBER} as a destination means each subscriber; take another name.")
        if self.processing == Processing.KEYED and not self.ordering_key:
            raise field_error(["ordering_key"], "A subscriber that is KEYED needs a path to the ordering key.")
        if self.concurrency > 1 and self.processing == Processing.SERIAL:
            raise field_error(["concurrency"], f"A subscriber that is {self.processing} is sent one at a time.")
