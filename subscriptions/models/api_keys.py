"""Who may call the API."""

from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from subscriptions.models.publishers import Publisher
from subscriptions.models.subscribers import Subscriber
from subscriptions.models.versioned import Versioned


class KeyKind(models.TextChoices):
    """What a key opens (behaviour 1.2)."""

    PUBLISHER = "PUBLISHER"
    """Publishes, and reads its publisher's messages."""

    SUBSCRIBER = "SUBSCRIBER"
    """Reads and changes its subscriber's subscriptions, deliveries and mailbox."""

    MANAGEMENT = "MANAGEMENT"
    """Everything."""


class ApiKey(Versioned):
    """One bearer token's hash, and whom it belongs to; the token itself is shown once and never stored."""

    kind = models.CharField(max_length=10, choices=KeyKind)
    publisher = models.ForeignKey(Publisher, models.CASCADE, null=True, blank=True, related_name="api_keys")
    subscriber = models.ForeignKey(Subscriber, models.CASCADE, null=True, blank=True, related_name="api_keys")
    label = models.CharField(max_length=255, blank=True, default="", help_text="Where it is used, for rotation.")
    prefix = models.CharField(max_length=16, editable=False, help_text="The token's beginning, to tell keys apart.")
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    requests_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="How many at most, in each web process; empty: as the broker is set up.",
    )
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "API key"
        constraints = [
            models.CheckConstraint(
                name="api_key_owner",
                violation_error_message="A key belongs to one publisher, to one subscriber, or to management.",
                condition=Q(kind=KeyKind.PUBLISHER, publisher__isnull=False, subscriber=None)
                | Q(kind=KeyKind.SUBSCRIBER, publisher=None, subscriber__isnull=False)
                | Q(kind=KeyKind.MANAGEMENT, publisher=None, subscriber=None),
            ),
            models.CheckConstraint(name="api_key_requests_per_minute", condition=Q(requests_per_minute__gte=1)),
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… {self.label}".strip()
