"""How a subscription's deliveries go out: how fast, in which form, and what happens after they fail."""

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from subscriptions.endpoints import MAX_ENDPOINT_LENGTH, is_scripted, validate_monitor_url
from subscriptions.models.event_types import EventKind
from subscriptions.models.retry_policies import RetryPolicy
from subscriptions.outputs import Output

RATE_LIMITS = (0.001, 10_000.0)
"""Deliveries per second."""


class Sent(models.Model):
    """What a subscription says about its deliveries on their way out."""

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
        if self.output != Output.AS_PUBLISHED and is_scripted(endpoint):
            text = "What the script of webr:// answers is sent to nobody; leave the output as published."
            raise ValidationError({"output": ValidationError(text, code="output")})


KNOWN_WAYS = (
    models.CheckConstraint(name="subscription_rate_limit", condition=Q(rate_limit__range=RATE_LIMITS)),
    models.CheckConstraint(name="subscription_output", condition=Q(output__in=Output.values)),
)
