"""How a subscription's deliveries go out: by which way, how fast, in which form, and what happens after they fail."""

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from subscriptions.endpoints import MAX_ENDPOINT_LENGTH, is_scripted, validate_monitor_url
from subscriptions.models.event_types import EventKind
from subscriptions.models.retry_policies import RetryPolicy
from subscriptions.payload_format import Output

RATE_LIMITS = (0.001, 10_000.0)
"""Deliveries per second."""


class DeliveryMode(models.TextChoices):
    """Who calls whom; switched at any time, and what waits keeps its place (behaviour 9.8)."""

    PUSH = "PUSH"
    """The broker sends to the endpoint."""

    PULL = "PULL"
    """The subscriber fetches from its mailbox (behaviour 9.1)."""


OF_PUSH = ("retry_policy", "rate_limit", "monitor_url", "script")
"""What says how the broker sends, and so nothing of what is fetched."""


class Sent(models.Model):
    """What a subscription says about its deliveries on their way out."""

    delivery_mode = models.CharField(
        max_length=4,
        choices=DeliveryMode,
        default=DeliveryMode.PUSH,
        db_default=DeliveryMode.PUSH,
        help_text="PUSH: sent to the endpoint. PULL: fetched from the subscriber's mailbox: TOPIC events only, and "
        "without script, rate limit, retry policy and monitor URL.",
    )
    retry_policy = models.ForeignKey(
        RetryPolicy,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="subscriptions",
        help_text="What happens after a delivery has failed; empty: as TeamForge says.",
    )
    rate_limit = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(RATE_LIMITS[0]), MaxValueValidator(RATE_LIMITS[1])],
        help_text="How many deliveries per second at most; empty: without limit.",
    )
    output = models.CharField(
        max_length=24,
        choices=Output,
        default=Output.AS_PUBLISHED,
        db_default=Output.AS_PUBLISHED,
        help_text="Whether messages are sent as CloudEvents.",
    )
    monitor_url = models.CharField(
        max_length=MAX_ENDPOINT_LENGTH,
        blank=True,
        default="",
        db_default="",
        validators=[validate_monitor_url],
        help_text="Asked with GET whether the endpoint works again; empty: the oldest delivery is tried.",
    )

    class Meta:
        abstract = True

    def check_ways(self, kind: str, endpoint: str) -> None:
        """Raise `ValidationError` for what subscriptions to events of this `kind`, or of this endpoint, do not have."""
        given = [name for name in ("retry_policy", "rate_limit", "monitor_url") if getattr(self, name)]
        if given and kind != EventKind.TOPIC:
            text = f"TOPIC subscriptions may have one; these events are of kind {kind}."
            raise ValidationError({name: ValidationError(text, code=name) for name in given})
        if self.delivery_mode == DeliveryMode.PULL:
            self._check_pulled(kind)
        elif not endpoint:
            raise ValidationError({"endpoint": ValidationError("PUSH goes to an endpoint: give one.", code="endpoint")})
        if self.output != Output.AS_PUBLISHED and is_scripted(endpoint):
            text = "What the script of webr:// answers is sent to nobody; leave the output as published."
            raise ValidationError({"output": ValidationError(text, code="output")})

    def _check_pulled(self, kind: str) -> None:
        if kind != EventKind.TOPIC:
            text = f"Only TOPIC events are fetched from a mailbox; these are of kind {kind}."
            raise ValidationError({"delivery_mode": ValidationError(text, code="delivery_mode")})
        text = "What is fetched from a mailbox has none; clear it, in the same change if you like."
        if given := [name for name in OF_PUSH if getattr(self, name)]:
            raise ValidationError({name: ValidationError(text, code=name) for name in given})


KNOWN_WAYS = (
    models.CheckConstraint(name="subscription_delivery_mode", condition=Q(delivery_mode__in=DeliveryMode.values)),
    models.CheckConstraint(name="subscription_rate_limit", condition=Q(rate_limit__range=RATE_LIMITS)),
    models.CheckConstraint(name="subscription_output", condition=Q(output__in=Output.values)),
)
