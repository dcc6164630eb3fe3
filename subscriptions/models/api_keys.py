"""API keys, and signing secrets that are still valid after a rotation."""

import datetime as dt
from functools import reduce
from operator import or_

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q

from broker_project.core.encryption import FORMER_SECRET, EncryptedValue
from subscriptions.credentials.scopes import OPENED, KeyKind, Scope
from subscriptions.models.base import ReservedId, Versioned
from subscriptions.models.event_types import Publisher
from subscriptions.models.subscribers import Subscriber
from subscriptions.models.subscriptions import Subscription
from subscriptions.names import validate_label


class ApiKey(Versioned):
    """The hash of a bearer token, its owner and its scopes; the token itself is shown once and never stored.

    Owner and scopes never change, and an end set by rotation or revocation stays.
    """

    kind = models.CharField(max_length=10, choices=KeyKind)
    publisher = models.ForeignKey(Publisher, models.CASCADE, null=True, blank=True, related_name="api_keys")
    subscriber = models.ForeignKey(Subscriber, models.CASCADE, null=True, blank=True, related_name="api_keys")
    scopes = ArrayField(models.CharField(max_length=9, choices=Scope))
    label = models.CharField(
        max_length=255,
        blank=True,
        default="",
        validators=[validate_label],
        help_text="Where it is used, for rotation.",
    )
    prefix = models.CharField(
        max_length=16, editable=False, help_text="The beginning of the token, to tell keys apart."
    )
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    requests_per_minute = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Maximum, in each web process; empty: the broker's default.",
    )
    retires_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When it ends because of a rotation."
    )
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    successor_of = models.ForeignKey(
        "self", models.SET_NULL, null=True, blank=True, editable=False, related_name="successors"
    )
    issued_by = models.CharField(max_length=255, blank=True, default="", editable=False)
    is_portal = models.BooleanField(
        default=False, editable=False, help_text="Whether it was issued for a link to its subscriber's portal."
    )
    sent_forms = ArrayField(models.CharField(max_length=16), default=list, editable=False)
    """The newest forms of its portal that were sent, each of which does its work once."""

    class Meta:
        verbose_name = "API key"
        permissions = [("issue_management_key", "Can issue, rotate and prolong management keys")]
        constraints = [
            models.CheckConstraint(
                name="api_key_owner",
                violation_error_message="A key belongs to one publisher, to one subscriber, or to management.",
                condition=Q(kind=KeyKind.PUBLISHER, publisher__isnull=False, subscriber=None)
                | Q(kind=KeyKind.SUBSCRIBER, publisher=None, subscriber__isnull=False)
                | Q(kind=KeyKind.MANAGEMENT, publisher=None, subscriber=None),
            ),
            models.CheckConstraint(name="api_key_requests_per_minute", condition=Q(requests_per_minute__gte=1)),
            models.CheckConstraint(
                name="api_key_scopes",
                violation_error_message="A key has one or more of the scopes of its kind.",
                condition=Q(scopes__len__gt=0)
                & reduce(or_, (Q(kind=kind, scopes__contained_by=[*scopes]) for kind, scopes in OPENED.items())),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.prefix}… {self.label}".strip()

    @property
    def ends_at(self) -> dt.datetime | None:
        """When it was revoked, ends because of a rotation, or expires: the first of these; None: never."""
        return min((at for at in (self.revoked_at, self.retires_at, self.expires_at) if at), default=None)

    def has_ended(self, now: dt.datetime) -> bool:
        """Return whether it is no longer valid."""
        return self.ends_at is not None and self.ends_at <= now


class FormerSecret(models.Model):
    """A replaced signing secret of a subscription, which signs beside the present one for a while."""

    id = ReservedId("ID", primary_key=True, auto_created=True)
    subscription = models.ForeignKey(Subscription, models.CASCADE, related_name="+")
    secret = EncryptedValue(purpose=FORMER_SECRET, needed_until="signs_until")
    signs_until = models.DateTimeField()

    def __str__(self) -> str:
        return f"former secret {self.pk}"
