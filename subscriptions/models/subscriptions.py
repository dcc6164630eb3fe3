"""Who wants what, and where it goes."""

from django.db import models
from django.db.models import Q

from subscriptions.endpoints import MAX_ENDPOINT_LENGTH, validate_endpoint
from subscriptions.headers import validate_filter_string, validate_headers
from subscriptions.models.event_types import EventType
from subscriptions.models.subscribers import Status, Subscriber
from subscriptions.models.versioned import Versioned
from subscriptions.signing_secrets import PREFIX as SECRET_PREFIX
from subscriptions.signing_secrets import validate_secret

MAX_FILTER_STRING_LENGTH = 4096


class Subscription(Versioned):
    """One subscriber's wish for one event type: endpoint, filter, headers; both ends are fixed (behaviour 1.4)."""

    subscriber = models.ForeignKey(Subscriber, models.PROTECT, related_name="subscriptions")
    event_type = models.ForeignKey(EventType, models.PROTECT, related_name="subscriptions")
    endpoint = models.CharField(
        max_length=MAX_ENDPOINT_LENGTH,
        validators=[validate_endpoint],
        help_text="A URL, with another method than POST as a prefix: PATCH:https://host/path.",
    )
    headers = models.JSONField(
        blank=True, default=dict, validators=[validate_headers], help_text="Override the subscriber's headers."
    )
    header_filter_string = models.CharField(
        max_length=MAX_FILTER_STRING_LENGTH,
        blank=True,
        default="",
        validators=[validate_filter_string],
        help_text="Only messages whose FILTER_STRING header is exactly this; empty: all.",
    )
    signing_secret = models.CharField(max_length=100, validators=[validate_secret], editable=False)
    position = models.PositiveIntegerField(default=0, help_text="Its place within the subscriber, lowest first.")
    status = models.CharField(max_length=8, choices=Status, default=Status.ACTIVE)

    class Meta:
        constraints = [
            models.CheckConstraint(name="subscription_status", condition=Q(status__in=Status.values)),
            models.CheckConstraint(name="subscription_endpoint", condition=~Q(endpoint="")),
            models.CheckConstraint(
                name="subscription_signing_secret", condition=Q(signing_secret__startswith=SECRET_PREFIX)
            ),
        ]
        indexes = [models.Index(name="subscription_active", fields=["event_type"], condition=Q(status=Status.ACTIVE))]

    def __str__(self) -> str:
        return f"{self.subscriber} ← {self.event_type}"
