"""Explain why subscriptions get a stored message or not, by the current configuration (contract 2.2, 3)."""

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Final

from delivery.models import Delivery, Message
from delivery.publish.draft import document_of
from delivery.publish.routing import named_by
from subscriptions.filters import FilterInput, MatchExplanation, judge
from subscriptions.models import EventKind, Status, Subscription
from subscriptions.names import REACHED_KIND, patterns_of

MAX_EXPLAINED: Final = 1000
"""Subscriptions of a message's event type that are explained."""


@dataclass(frozen=True, slots=True)
class Explained:
    """What a subscription makes of a message."""

    subscription: Subscription
    verdict: MatchExplanation


@dataclass(frozen=True, slots=True)
class Explanations:
    """What the subscriptions of its event type make of a message."""

    found: list[Explained]
    is_cut: bool
    """Whether there are more."""


def filter_input_of(message: Message) -> FilterInput:
    """Return what filters see of a stored message."""
    headers = [(name, value) for name, value in message.headers]
    document = document_of(headers, message.content_type, message.filter_string, bytes(message.body))
    return FilterInput(message.filter_string, document)


def explain_message(message: Message, limit: int) -> Explanations:
    """Explain for each subscription, the oldest first, whether it gets the message; none gets a reply to a callback."""
    if message.event_type is None or message.answers is not None:
        return Explanations([], is_cut=False)
    asked = Subscription.objects.reached_by(message.event_type)
    if (named := named_by(message.destination)) is not None:  # they may be for other events
        asked |= named
    found = [*asked.select_related("subscriber", "event_type").order_by("pk")[: limit + 1]]
    shown, older = filter_input_of(message), backfilled(message, found)
    explained = [Explained(one, verdict_on(shown, one, message, older)) for one in found[:limit]]
    if message.event_type.kind == EventKind.SYNC:
        explained = _as_a_call(explained)
    if message.destination:
        explained = _as_directed(explained, message.destination)
    return Explanations(explained, is_cut=len(found) > limit)


def backfilled(message: Message, subscriptions: Sequence[Subscription]) -> set[int | None]:
    """Return which of these got the message although they were made after it was published (contract 5.8)."""
    later = [one.pk for one in subscriptions if one.created_at > message.published_at]
    got = Delivery.objects.filter(message=message, subscription__in=later) if later else Delivery.objects.none()
    return {*got.values_list("subscription_id", flat=True)}


def _as_a_call(explained: list[Explained]) -> list[Explained]:
    """Explain a SYNC message: the first created of the qualifying subscriptions is asked (contract 7.1)."""
    wanting = [one for one in explained if one.verdict.qualifies or one.verdict.is_unknown]
    if not wanting:
        return explained
    first, *others = wanting
    asked = first.subscription.pk
    obstacles = {other.subscription.pk: f"Subscription {asked}, made before, is asked." for other in others}
    if first.verdict.is_unknown:
        obstacles[asked] = "The filter fails, and so does the call."
    return _kept_away(explained, obstacles)


def _as_directed(explained: list[Explained], destination: str) -> list[Explained]:
    """Explain a message with a destination: the first qualifying subscription gets it (contract 2.8)."""
    named = named_by(destination)
    ids = None if named is None else {*named.values_list("pk", flat=True)}
    takers: dict[int, int] = {}
    obstacles: dict[int, str] = {}
    for one in sorted(explained, key=lambda one: (one.subscription.position, one.subscription.pk)):
        subscription = one.subscription
        if ids is not None and subscription.pk not in ids:
            obstacles[subscription.pk] = f"The message is for {destination} alone."
        elif one.verdict.qualifies or one.verdict.is_unknown:
            first = takers.setdefault(subscription.subscriber_id, subscription.pk)
            if first != subscription.pk:
                obstacles[subscription.pk] = f"Subscription {first}, before it at its subscriber, takes it."
    return _kept_away(explained, obstacles)


def _kept_away(explained: list[Explained], obstacles: dict[int, str]) -> list[Explained]:
    by_obstacle = [(one, obstacles.get(one.subscription.pk, one.verdict.obstacle)) for one in explained]
    return [replace(one, verdict=replace(one.verdict, obstacle=obstacle)) for one, obstacle in by_obstacle]


def verdict_on(
    shown: FilterInput, subscription: Subscription, message: Message | None = None, older: Container[int | None] = ()
) -> MatchExplanation:
    """Return what a subscription makes of a message by its filters and status; of a stored one by its type too.

    `older` has the subscription if it got the message although it was made later, as `backfilled` tells.
    """
    closed = ""
    if subscription.status != Status.ACTIVE:
        closed = f"The subscription is {subscription.status}."
    elif subscription.subscriber.status != Status.ACTIVE:
        closed = f"The subscriber is {subscription.subscriber.status}."
    return judge(
        shown,
        header_filter_string=subscription.header_filter_string,
        filter_text=subscription.filter,
        obstacle=(_why_not_reached(subscription, message, older) if message else "") or closed,
    )


def _why_not_reached(subscription: Subscription, message: Message, older: Container[int | None]) -> str:
    """Return what keeps a message from a subscription regardless of filters and status."""
    event_type = message.event_type
    if event_type is None:
        return "The event type of this message does not exist any more."
    is_reached = subscription.event_type_id == event_type.pk  # as in `SubscriptionQuerySet.reached_by`
    if subscription.event_type_id is None:
        is_reached = event_type.kind == REACHED_KIND and subscription.event_pattern in patterns_of(event_type.name)
    if not is_reached:
        return f"The message is of {event_type.name}, the subscription is for {subscription.events}."
    if subscription.created_at > message.published_at and subscription.pk not in older:  # contract 5.8
        return "The subscription was made after this message was published."
    return ""
