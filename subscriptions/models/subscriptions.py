"""Who wants what, and where it goes."""

from collections.abc import Collection
from typing import Self

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from broker_project.core.sealed_fields import SealedHeaders, SealedText
from broker_project.core.sealing import SIGNING_SECRET, SUBSCRIPTION_HEADERS
from subscriptions.credentials.signing_secrets import validate_secret
from subscriptions.endpoints import MAX_ENDPOINT_LENGTH, is_scripted, validate_endpoint
from subscriptions.filters import FilterSyntaxError, parse_filter
from subscriptions.headers import validate_headers
from subscriptions.models.base import Headed
from subscriptions.models.event_types import EventKind, EventType
from subscriptions.models.pausable import PAUSES_ARE_WHOLE, PROBES, Pausable
from subscriptions.models.sent import KNOWN_WAYS, DeliveryMode, Sent
from subscriptions.models.subscribers import Status, Subscriber
from subscriptions.models.wanting import ONE_WISH, Wanting
from subscriptions.patterns import REACHED_KIND, patterns_of


class SubscriptionQuerySet(models.QuerySet["Subscription"]):
    """Subscriptions, by what they are for."""

    def reached_by(self, event_type: EventType) -> Self:
        """Keep those that messages of this event type can reach: by its name, and for TOPIC types by a pattern."""
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
    """One subscriber's wish for one event type, or for all that a pattern names (behaviour 1.4, 1.9).

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
    headers = SealedHeaders(
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
    signing_secret = SealedText(purpose=SIGNING_SECRET, validators=[validate_secret], editable=False)
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

        And for what only TOPIC subscriptions have (behaviour 5.1), or only PUSH ones (9.1).
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
        """Raise `ValidationError` where another SYNC subscription would qualify for the same calls (behaviour 7.3).

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
