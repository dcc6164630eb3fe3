"""Subscriptions: who wants what, where it goes and how."""

from collections.abc import Collection
from typing import Self

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from broker_project.core.encryption import SIGNING_SECRET, SUBSCRIPTION_HEADERS, EncryptedText
from subscriptions.credentials.tokens import validate_secret
from subscriptions.endpoints import MAX_ENDPOINT_LENGTH, is_scripted, validate_endpoint, validate_monitor_url
from subscriptions.filters import FilterSyntaxError, parse_filter, validate_filter
from subscriptions.headers import validate_filter_string, validate_headers
from subscriptions.lookup_keys import NO_TERM, term_of
from subscriptions.models.base import EncryptedHeaders, Headed
from subscriptions.models.event_types import EventKind, EventType
from subscriptions.models.retry_policies import RetryPolicy
from subscriptions.models.subscribers import Status, Subscriber
from subscriptions.names import MAX_NAME_LENGTH, PATTERN_PATTERN, REACHED_KIND, patterns_of, validate_pattern
from subscriptions.payload_format import PayloadFormat

MAX_FILTER_STRING_LENGTH = 4096

RATE_LIMITS = (0.001, 10_000.0)
"""Deliveries per second."""


OF_PUSH = ("retry_policy", "rate_limit", "monitor_url", "script")
"""What says how the broker sends, and so nothing of what is fetched."""


class FilterTermField(models.TextField):  # type: ignore[type-arg]  # no brackets at run time
    """What the record's filter can be looked up by, made of it whenever this is saved.

    A term that does not belong to the filter, because something else has written that, is dropped by a trigger.
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> str:  # noqa: ARG002 - Django's signature
        """Return the term of the filter."""
        term = term_of(model_instance.filter)  # type: ignore[attr-defined]
        setattr(model_instance, self.attname, term)
        return term


class Wanting(models.Model):
    """What a subscription says about the messages that it wants (contract 1.9, 2.2)."""

    event_type = models.ForeignKey(EventType, models.PROTECT, null=True, blank=True, related_name="subscriptions")
    kind = models.CharField(max_length=8, choices=EventKind, db_default=EventKind.TOPIC, editable=False)
    """Its event type's, TOPIC for a pattern; the database writes it."""
    event_pattern = models.CharField(
        max_length=MAX_NAME_LENGTH,
        blank=True,
        default="",
        validators=[validate_pattern],
        help_text="Instead of an event type: TeamForge.Artifact.* means every TOPIC event type that begins so; * all.",
    )
    header_filter_string = models.CharField(
        max_length=MAX_FILTER_STRING_LENGTH,
        blank=True,
        default="",
        validators=[validate_filter_string],
        help_text="Only messages whose FILTER_STRING header is exactly this; empty: all.",
    )
    filter = models.TextField(
        blank=True,
        default="",
        validators=[validate_filter],
        help_text="Only messages for which this is true, such as $$->'Body'->>'state' = 'open'; empty: all.",
    )
    filter_term = FilterTermField(default=NO_TERM, editable=False, db_collation="C")

    class Meta:
        abstract = True

    @property
    def events(self) -> str:
        """What it is for: an event type's name, or a pattern."""
        return self.event_pattern or str(self.event_type)


ONE_WISH = (
    models.CheckConstraint(
        name="subscription_event",
        violation_error_message="A subscription is for one event type or for one pattern, not for both.",
        condition=Q(event_type__isnull=False, event_pattern="") | Q(event_type=None) & ~Q(event_pattern=""),
    ),
    models.CheckConstraint(
        name="subscription_pattern", condition=Q(event_pattern="") | Q(event_pattern__regex=PATTERN_PATTERN)
    ),
)


class PausedBy(models.TextChoices):
    """What paused it, and so what ends the pause."""

    HAND = "HAND"
    """A person, who resumes it."""

    POLICY = "POLICY"
    """Its retry policy; the first probe that works resumes it (contract 5.6)."""

    BACKFILL = "BACKFILL"
    """What it gets of older messages; it resumes when they are all there (contract 5.8)."""


class DeliveryMode(models.TextChoices):
    """Who calls whom; switched at any time, and what waits keeps its place (contract 9.8)."""

    PUSH = "PUSH"
    """The broker sends to the endpoint."""

    PULL = "PULL"
    """The subscriber fetches from its mailbox (contract 9.1)."""


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
    """Whether what it has is handed out by its subscriber's mailbox now (contract 9.1)."""

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
        choices=PayloadFormat,
        default=PayloadFormat.AS_PUBLISHED,
        db_default=PayloadFormat.AS_PUBLISHED,
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
        if self.output != PayloadFormat.AS_PUBLISHED and is_scripted(endpoint):
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
    models.CheckConstraint(name="subscription_output", condition=Q(output__in=PayloadFormat.values)),
)


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    """Subscriptions, by what they are for."""

    def reached_by(self, event_type: EventType) -> Self:
        """Keep those that messages of this event type can egress: by its name, and for TOPIC types by a pattern."""
        by_name = Q(event_type=event_type)
        if event_type.kind != REACHED_KIND:
            return self.filter(by_name)
        return self.filter(by_name | Q(event_pattern__in=patterns_of(event_type.name)))

    def like(self, subscription: "Subscription") -> "list[Subscription]":
        """Return the others of its event type with the same filters, blanks and the case of keywords aside."""
        others = self.filter(event_type=subscription.event_type, header_filter_string=subscription.header_filter_string)
        different = (other for other in others.order_by("pk") if other.pk != subscription.pk)
        return [other for other in different if _canonical(other.filter) == _canonical(subscription.filter)]


class Subscription(Wanting, Sent, Pausable, Headed):
    """One subscriber's wish for one event type, or for all that a pattern names (contract 1.4, 1.9).

    Both ends are fixed.
    """

    subscriber = models.ForeignKey(Subscriber, models.PROTECT, related_name="subscriptions")
    endpoint = models.CharField(
        max_length=MAX_ENDPOINT_LENGTH,
        blank=True,
        default="",
        validators=[validate_endpoint],
        help_text="A URL, with another method than POST as a prefix: PATCH:https://host/path. webr://: the script."
        " PULL needs none.",
    )
    headers = EncryptedHeaders(
        purpose=SUBSCRIPTION_HEADERS,
        blank=True,
        default=dict,
        validators=[validate_headers],
        help_text="Override the subscriber's headers. Values are never shown; null keeps the one that there is.",
    )
    script = models.TextField(
        blank=True,
        default="",
        help_text="JavaScript that makes $outmessage, the body that is sent or answered, of $inmessage; empty: none.",
    )
    signing_secret = EncryptedText(purpose=SIGNING_SECRET, validators=[validate_secret], editable=False)
    overlap_ends_at = models.DateTimeField(
        null=True, editable=False, help_text="Until then former signing secrets sign too, after a rotation."
    )
    position = models.PositiveIntegerField(default=0, help_text="Its place within the subscriber, lowest first.")
    status = models.CharField(max_length=8, choices=Status, default=Status.ACTIVE)

    derived = ("filter_term",)
    compared = frozenset({"header_filter_string", "filter"})

    objects = SubscriptionQuerySet.as_manager()

    class Meta:
        indexes = [PROBES]
        permissions = [("pause", "Can pause and resume"), ("rotate_secret", "Can rotate signing secrets")]
        constraints = [
            models.CheckConstraint(name="subscription_status", condition=Q(status__in=Status.values)),
            *ONE_WISH,
            *KNOWN_WAYS,
            PAUSES_ARE_WHOLE,
            models.CheckConstraint(
                name="subscription_endpoint", condition=~Q(endpoint="") | Q(delivery_mode=DeliveryMode.PULL)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subscriber} ← {self.events}"

    def clean(self) -> None:
        """Raise `ValidationError` for a script where none is run (8.1), or none where it should answer (8.2).

        And for what only TOPIC subscriptions have (contract 5.1), or only PUSH ones (9.1).
        """
        kind = self.event_type.kind if self.event_type else REACHED_KIND
        has_script = bool(self.script.strip())
        self.check_ways(kind, self.endpoint)
        if is_scripted(self.endpoint) and kind != EventKind.SYNC:
            raise _refused("endpoint", f"webr:// answers SYNC events, and {self.events} is of kind {kind}: give a URL.")
        if is_scripted(self.endpoint) and not has_script:
            raise _refused("script", "The endpoint webr:// is answered by a script: give one.")
        if has_script and kind == EventKind.SYNC and not is_scripted(self.endpoint):
            raise _refused("script", "A SYNC subscription has a script in place of a URL: give the endpoint webr://.")
        if has_script and kind == EventKind.QUEUE:
            raise _refused("script", f"TOPIC and SYNC subscriptions may have a script; {self.events} is of kind QUEUE.")

    def change_along(self, changed: Collection[str]) -> Collection[str]:
        """End its suspension with a switch to PULL: there is no endpoint to be tried any more."""
        is_pulled_now = "delivery_mode" in changed and self.delivery_mode == DeliveryMode.PULL
        return self.end_suspension() if is_pulled_now else ()

    def clean_among_others(self) -> None:
        """Raise `ValidationError` where another SYNC subscription would qualify for the same calls (contract 7.3).

        Whatever their status: activating one, or its subscriber, need not be refused then. One at a time.
        """
        if self.event_type is None or self.event_type.kind != EventKind.SYNC:
            return
        EventType.objects.select_for_update(no_key=True).get(pk=self.event_type.pk)
        for twin in Subscription.objects.like(self)[:1]:
            raise _refused(
                "header_filter_string" if self.header_filter_string else "filter",
                f"Subscription {twin.pk} has the same filters, and a SYNC event goes to one endpoint: "
                "give this one other filters, or change that one.",
            )


def _refused(field: str, text: str) -> ValidationError:
    return ValidationError({field: ValidationError(text, code=field)})


def _canonical(filter_text: str) -> str:
    """Return the same for all filters that differ in nothing but how they are written."""
    try:
        return parse_filter(filter_text).canonical if filter_text else ""
    except FilterSyntaxError:  # stored by other hands
        return filter_text
