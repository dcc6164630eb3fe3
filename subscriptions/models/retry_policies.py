"""How deliveries that fail are tried again."""

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import Q

from subscriptions.models.base import Versioned, checks
from subscriptions.names import MAX_NAME_LENGTH, NAME_PATTERN, validate_name
from subscriptions.retry_policies import (
    ACTIONS,
    LIMITS,
    TEAMFORGE,
    TERMS,
    Action,
    OnExhausted,
    RetryTerms,
    check_terms,
    terms_of,
)


def _action(default: Action, outcome: str) -> "models.CharField[Any, Any]":
    return models.CharField(max_length=12, choices=Action, default=default, help_text=outcome)


class RetryPolicy(Versioned):
    """The retry rules of any number of subscriptions (contract 5.1); all times in seconds.

    At a change the database raises the versions of its subscriptions too (contract 4.9).
    """

    name = models.CharField(max_length=MAX_NAME_LENGTH, unique=True, validators=[validate_name])
    description = models.TextField(blank=True, default="")
    is_preset = models.BooleanField(default=False, editable=False)
    """Installed with the broker; the database refuses to change or delete it."""
    on_redirect = _action(TEAMFORGE.on_redirect, "3xx.")
    on_throttled = _action(TEAMFORGE.on_throttled, "408, 425 and 429.")
    on_client_error = _action(TEAMFORGE.on_client_error, "Any other 4xx.")
    on_unavailable = _action(TEAMFORGE.on_unavailable, "503.")
    on_server_error = _action(TEAMFORGE.on_server_error, "Any other 5xx, and invalid statuses.")
    on_no_answer = _action(TEAMFORGE.on_no_answer, "Refused, timed out, disconnected.")
    initial_delay_seconds = models.FloatField(
        default=TEAMFORGE.initial_delay_seconds, help_text="Seconds before the first retry."
    )
    factor = models.FloatField(default=TEAMFORGE.factor, help_text="How many times longer each further delay is.")
    max_delay_seconds = models.FloatField(default=TEAMFORGE.max_delay_seconds, help_text="Seconds.")
    jitter = models.FloatField(
        default=TEAMFORGE.jitter, help_text="Share by which a delay is shortened at most, at random."
    )
    schedule = ArrayField(
        models.FloatField(),
        blank=True,
        default=list,
        help_text="Seconds before each retry, instead of a computed delay.",
    )
    respect_retry_after = models.BooleanField(
        default=TEAMFORGE.respect_retry_after, help_text="Whether an endpoint can ask for a longer delay."
    )
    max_retries = models.PositiveIntegerField(
        null=True, blank=True, default=TEAMFORGE.max_retries, help_text="After the first attempt; empty: without limit."
    )
    on_exhausted = models.CharField(
        max_length=8,
        choices=OnExhausted,
        default=TEAMFORGE.on_exhausted,
        help_text="What happens after the last retry.",
    )
    probe_seconds = models.FloatField(
        default=TEAMFORGE.probe_seconds, help_text="Seconds between two probes of a suspended subscription."
    )

    class Meta:
        verbose_name_plural = "retry policies"
        constraints = checks(
            retry_policy_name=Q(name__regex=NAME_PATTERN),
            retry_policy_actions=Q(**{f"{name}__in": Action.values for name in ACTIONS}),
            retry_policy_end=Q(on_exhausted=OnExhausted.NEVER, max_retries=None)
            | Q(
                on_exhausted__in=[OnExhausted.FAIL, OnExhausted.REJECT, OnExhausted.SUSPEND],
                max_retries__isnull=False,
                max_retries__range=LIMITS["max_retries"],
            ),
            retry_policy_numbers=Q(
                **{f"{name}__range": limits for name, limits in LIMITS.items() if name != "max_retries"}
            ),
        )

    def __str__(self) -> str:
        return self.name

    @property
    def is_built_in(self) -> bool:
        """Whether it is a preset."""
        return self.is_preset

    @property
    def terms(self) -> RetryTerms:
        """Its terms as a value."""
        return terms_of({name: getattr(self, name) for name in TERMS})

    def clean(self) -> None:
        """Raise `ValidationError` unless the terms go together."""
        check_terms(self.terms)
