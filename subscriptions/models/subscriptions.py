"""Subscriptions: which messages a subscriber wants, where they go and how."""

from collections.abc import Collection, Iterator, Sequence
from typing import Self

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from broker_project.core.encryption import SIGNING_SECRET, SUBSCRIPTION_HEADERS, EncryptedValue
from subscriptions.credentials.tokens import key_of, new_secret
from subscriptions.endpoints import (
    DEFAULT_TIMEOUT_SECONDS,
    MAX_ENDPOINT_LENGTH,
    MAX_TIMEOUT_SECONDS,
    is_scripted,
    validate_endpoint,
    validate_monitor_url,
)
from subscriptions.filters import FilterSyntaxError, parse_filter, validate_filter
from subscriptions.headers import validate_filter_string, validate_headers
from subscriptions.lookup_keys import NO_TERM, term_of
from subscriptions.models.base import EncryptedHeaders, WithHeaders, checks, field_error
from subscriptions.models.event_types import EventKind, EventType
from subscriptions.models.retry_policies import RetryPolicy
from subscriptions.models.subscribers import FormerDestination, Status, Subscriber
from subscriptions.names import MAX_NAME_LENGTH, PATTERN_PATTERN, REACHED_KIND, patterns_of, validate_pattern
from subscriptions.payload_format import PayloadFormat

MAX_FILTER_STRING_LENGTH = 4096
RATE_LIMITS = (0.001, 10_000.0)
"""Deliveries per second."""
TOPIC_ONLY = ("retry_policy", "rate_limit", "monitor_url")
PUSH_ONLY = (*TOPIC_ONLY, "script")
REQUEST = frozenset({"endpoint", "headers", "output", "retry_policy"})
"""What its requests are made with, and judged by."""
NOT_PAUSED = {"paused_since": None, "paused_by": "", "paused_reason": "", "half_open": False, "probe_due_at": None}


class FilterTermField(models.TextField):  # type: ignore[type-arg]  # no brackets at run time
    """What the record's filter can be looked up by, derived from the filter at each save.

    A trigger drops a term that does not belong to the filter, if something else has written the filter.
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> str:  # noqa: ARG002 - Django's signature
        """Return the term of the filter."""
        term = term_of(model_instance.filter)  # type: ignore[attr-defined]
        setattr(model_instance, self.attname, term)
        return term


class PausedBy(models.TextChoices):
    """What paused a subscription, and so what ends the pause."""

    HAND = "HAND"
    """A person, who resumes it."""

    POLICY = "POLICY"
    """Its retry policy; the first successful probe resumes it (contract 5.6)."""

    BACKFILL = "BACKFILL"
    """A backfill; it resumes when all older messages are there, or by hand once the backfill has failed (5.8)."""


class DeliveryMode(models.TextChoices):
    """Push or pull; can be switched at any time, and pending deliveries keep their place (contract 9.8)."""

    PUSH = "PUSH"
    """The broker sends to the endpoint."""

    PULL = "PULL"
    """The subscriber polls its mailbox (contract 9.1)."""


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    """Subscriptions, by their events."""

    def reached_by(self, event_type: EventType) -> Self:
        """Keep those that messages of this event type can reach: by its name, and for TOPIC types by a pattern."""
        by_name = Q(event_type=event_type)
        if event_type.kind != REACHED_KIND:
            return self.filter(by_name)
        return self.filter(by_name | Q(event_pattern__in=patterns_of(event_type.name)))


class Subscription(WithHeaders):
    """One subscriber's wish for an event type or for all that match a pattern; both are fixed (contract 1.4, 1.9)."""

    subscriber = models.ForeignKey(Subscriber, models.PROTECT, related_name="subscriptions")
    event_type = models.ForeignKey(EventType, models.PROTECT, null=True, blank=True, related_name="subscriptions")
    kind = models.CharField(max_length=8, choices=EventKind, db_default=EventKind.TOPIC, editable=False)
    """Its event type's, TOPIC for a pattern; written by the database."""
    event_pattern = models.CharField(
        max_length=MAX_NAME_LENGTH,
        blank=True,
        default="",
        validators=[validate_pattern],
        help_text="Instead of an event type: TeamForge.Artifact.* matches TOPIC event types that begin so; * all.",
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
    delivery_mode = models.CharField(
        max_length=4,
        choices=DeliveryMode,
        default=DeliveryMode.PUSH,
        db_default=DeliveryMode.PUSH,
        help_text="PUSH: sent to the endpoint. PULL: polled from the subscriber's mailbox: TOPIC events only, and "
        "without script, rate limit, retry policy and monitor URL.",
    )
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
        help_text="Override the subscriber's headers. Values are never shown; null keeps the present one.",
    )
    script = models.TextField(
        blank=True,
        default="",
        help_text="JavaScript that makes $outmessage, the body that is sent or answered, from $inmessage; empty: none.",
    )
    output = models.CharField(
        max_length=24,
        choices=PayloadFormat,
        default=PayloadFormat.AS_PUBLISHED,
        db_default=PayloadFormat.AS_PUBLISHED,
        help_text="Whether messages are sent as CloudEvents.",
    )
    signing_secret = EncryptedValue(purpose=SIGNING_SECRET, default=new_secret, validators=[key_of], editable=False)
    overlap_ends_at = models.DateTimeField(
        null=True, editable=False, help_text="Until then former signing secrets sign too, after a rotation."
    )
    retry_policy = models.ForeignKey(
        RetryPolicy,
        models.PROTECT,
        null=True,
        blank=True,
        related_name="subscriptions",
        help_text="What happens after a delivery has failed; empty: the preset TeamForge.",
    )
    rate_limit = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(RATE_LIMITS[0]), MaxValueValidator(RATE_LIMITS[1])],
        help_text="Maximum deliveries per second; empty: no limit.",
    )
    timeout_seconds = models.PositiveSmallIntegerField(
        default=DEFAULT_TIMEOUT_SECONDS,
        db_default=DEFAULT_TIMEOUT_SECONDS,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_TIMEOUT_SECONDS)],
        help_text="How long its endpoint may take for an answer to a TOPIC or QUEUE event.",
    )
    monitor_url = models.CharField(
        verbose_name="monitor URL",
        max_length=MAX_ENDPOINT_LENGTH,
        blank=True,
        default="",
        db_default="",
        validators=[validate_monitor_url],
        help_text="Asked with GET whether the endpoint works again; empty: the oldest delivery is tried.",
    )
    position = models.PositiveIntegerField(default=0, help_text="Its place within the subscriber, lowest first.")
    status = models.CharField(max_length=8, choices=Status, default=Status.ACTIVE)
    """Changed by people only, unlike the pause, which the broker may begin and end."""
    paused_since = models.DateTimeField(null=True, editable=False)
    """None: not paused."""
    paused_by = models.CharField(max_length=8, choices=PausedBy, default="", db_default="", editable=False)
    paused_reason = models.TextField(default="", db_default="", editable=False)
    half_open = models.BooleanField(default=False, db_default=False, editable=False)
    """Paused, except for its oldest delivery, whose outcome decides."""
    probe_due_at = models.DateTimeField(null=True, editable=False)
    diverted_since = models.DateTimeField(null=True, editable=False)
    """When a request timed out, since which its subscriber's retry line tries the endpoint, and the main line sends
    nothing to it (contract 5.10); None: it is not diverted. The database ends that with any change."""
    is_sending = models.GeneratedField(
        expression=Q(status=Status.ACTIVE)  # type: ignore[arg-type]
        & (Q(paused_since=None) | Q(half_open=True))
        & Q(delivery_mode=DeliveryMode.PUSH),
        output_field=models.BooleanField(),
        db_persist=True,
    )
    """Whether it is sent anything now; for statements: objects that change do not update it."""
    is_fetchable = models.GeneratedField(
        expression=Q(status=Status.ACTIVE, paused_since=None, delivery_mode=DeliveryMode.PULL),  # type: ignore[arg-type]
        output_field=models.BooleanField(),
        db_persist=True,
    )
    """Whether its messages can be fetched from its subscriber's mailbox now (contract 9.1)."""

    derived = ("filter_term",)
    compared = frozenset({"header_filter_string", "filter"})

    objects = SubscriptionQuerySet.as_manager()

    class Meta:
        indexes = [
            models.Index(  # inactive ones would stay due as long as they are inactive
                name="subscription_probes",
                fields=["probe_due_at"],
                condition=Q(probe_due_at__isnull=False) & ~Q(status=Status.INACTIVE),
            ),
            models.Index(
                name="subscription_diverted", fields=["subscriber"], condition=Q(diverted_since__isnull=False)
            ),
        ]
        permissions = [("pause", "Can pause and resume"), ("rotate_secret", "Can rotate signing secrets")]
        constraints = [
            models.CheckConstraint(
                name="subscription_event",
                violation_error_message="A subscription is for one event type or for one pattern, not for both.",
                condition=Q(event_type__isnull=False, event_pattern="") | Q(event_type=None) & ~Q(event_pattern=""),
            ),
            *checks(
                subscription_status=Q(status__in=Status.values),
                subscription_pattern=Q(event_pattern="") | Q(event_pattern__regex=PATTERN_PATTERN),
                subscription_delivery_mode=Q(delivery_mode__in=DeliveryMode.values),
                subscription_rate_limit=Q(rate_limit__range=RATE_LIMITS),
                subscription_timeout=Q(timeout_seconds__range=(1, MAX_TIMEOUT_SECONDS)),
                subscription_output=Q(output__in=PayloadFormat.values),
                subscription_pause=Q(**NOT_PAUSED) | Q(paused_since__isnull=False, paused_by__in=PausedBy.values),
                subscription_endpoint=~Q(endpoint="") | Q(delivery_mode=DeliveryMode.PULL),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.subscriber} ← {self.events}"

    @property
    def events(self) -> str:
        """The name of its event type, or its pattern."""
        return self.event_pattern or str(self.event_type)

    @property
    def is_called(self) -> bool:
        """Whether requests go to its endpoint; else its messages are fetched, or answered by its script."""
        return self.delivery_mode == DeliveryMode.PUSH and not is_scripted(self.endpoint)

    @property
    def canonical_filter(self) -> str:
        """Its filter in a text that is the same for all ways to write it."""
        try:
            return parse_filter(self.filter).canonical if self.filter else ""
        except FilterSyntaxError:  # not stored by this application
            return self.filter

    def clean(self) -> None:
        """Raise `ValidationError` for fields that do not go together."""
        kind = EventKind(self.event_type.kind if self.event_type else REACHED_KIND)
        for names, text in (*self._mode_problems(kind), *self._script_problems(kind)):
            raise field_error(names, text)

    def _mode_problems(self, kind: EventKind) -> Iterator[tuple[Sequence[str], str]]:
        """Yield fields that a subscription of this kind (contract 5.1) or delivery mode (9.1) does not have."""
        if kind != EventKind.TOPIC and (given := self._given(TOPIC_ONLY)):
            yield given, f"TOPIC subscriptions may have one; these events are of kind {kind}."
        is_asked_otherwise = kind == EventKind.SYNC or self.delivery_mode == DeliveryMode.PULL
        if is_asked_otherwise and self.timeout_seconds != DEFAULT_TIMEOUT_SECONDS:
            text = f"Only TOPIC and QUEUE events that are pushed have one; leave it {DEFAULT_TIMEOUT_SECONDS}."
            yield ["timeout_seconds"], text
        if self.delivery_mode == DeliveryMode.PULL:
            if kind != EventKind.TOPIC:
                yield ["delivery_mode"], f"Only TOPIC events can be polled from a mailbox; these are of kind {kind}."
            if given := self._given(PUSH_ONLY):
                yield given, "A PULL subscription has none; clear it, in the same change if you like."
        elif not self.endpoint:
            yield ["endpoint"], "PUSH goes to an endpoint: give one."

    def _script_problems(self, kind: EventKind) -> Iterator[tuple[Sequence[str], str]]:
        """Yield what is wrong for a script where none is run (contract 8.1), or none where one should answer (8.2)."""
        has_script, answers = bool(self.script.strip()), is_scripted(self.endpoint)
        if answers and self.output != PayloadFormat.AS_PUBLISHED:
            yield ["output"], "The answer of a webr:// script is not sent; leave the output as published."
        if answers and kind != EventKind.SYNC:
            yield ["endpoint"], f"webr:// answers SYNC events, and {self.events} is of kind {kind}: give a URL."
        if answers and not has_script:
            yield ["script"], "The endpoint webr:// is answered by a script: give one."
        if has_script and kind == EventKind.SYNC and not answers:
            yield ["script"], "A SYNC subscription has a script in place of a URL: give the endpoint webr://."
        if has_script and kind == EventKind.QUEUE:
            yield ["script"], f"TOPIC and SYNC subscriptions may have a script; {self.events} is of kind QUEUE."

    def _given(self, names: Sequence[str]) -> Sequence[str]:
        return [name for name in names if getattr(self, name)]

    def remember(self, changing: Collection[str]) -> None:
        """Note what its requests were sent with, and under which policy."""
        if not REQUEST.isdisjoint(changing):
            FormerDestination.objects.create(
                subscriber_id=self.subscriber_id,
                subscription_id=self.pk,
                header_names=self.header_names or [],
                endpoint=self.endpoint,
                output=self.output,
                retry_policy=str(self.retry_policy or ""),
            )

    def change_along(self, changed: Collection[str]) -> Collection[str]:
        """End its suspension when it is switched to PULL: there is no endpoint to probe any more."""
        is_pull_now = "delivery_mode" in changed and self.delivery_mode == DeliveryMode.PULL
        if not is_pull_now or self.paused_by != PausedBy.POLICY:
            return ()
        for name, value in NOT_PAUSED.items():
            setattr(self, name, value)
        return NOT_PAUSED.keys()

    def clean_among_others(self) -> None:
        """Raise `ValidationError` if another SYNC subscription would qualify for the same calls (contract 7.3).

        Active or not, so that activating one, or its subscriber, is never refused. The event type is locked.
        """
        if self.event_type is None or self.event_type.pk is None or self.event_type.kind != EventKind.SYNC:
            return
        EventType.objects.select_for_update(no_key=True).get(pk=self.event_type.pk)
        others = Subscription.objects.filter(event_type=self.event_type, header_filter_string=self.header_filter_string)
        others = others.exclude(pk=self.pk).order_by("pk")
        if twin := next((one for one in others if one.canonical_filter == self.canonical_filter), None):
            is_own = twin.subscriber_id == self.subscriber_id
            whose = f"Subscription {twin.pk}" if is_own else "A subscription of another subscriber"
            raise field_error(
                ["header_filter_string" if self.header_filter_string else "filter"],
                f"{whose} has the same filters, and a SYNC event goes to one endpoint: "
                "give this one other filters, or change that one.",
            )
