"""Say who would get an event if it were published, and why each other subscription would not (contract 2.15).

Checks and matching are those of publishing. What is added here only says why a subscription is not among the matches.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from django.db.models.enums import TextChoices

from broker_project.core.db import rows
from delivery.models import MessageOutcome
from delivery.publish.draft import document_of
from delivery.publish.publish import PublishTerms, dry_run
from delivery.publish.routing import Route, filter_groups, named_by
from delivery.publish.store import NewMessage
from delivery.volatile.publish_volatile import route_of_volatile
from subscriptions.filters import FilterInput, MatchExplanation, judge
from subscriptions.matching import subscriptions_to_ask
from subscriptions.models import EventKind, Status, Subscription
from subscriptions.names import REACHED_KIND, patterns_of


class DryRunDecision(TextChoices):
    """What a subscription would make of an event, in the order in which they are listed."""

    RECEIVES = "RECEIVES", "Gets it"
    """It gets it. QUEUE: one of its group does."""

    PAUSED = "PAUSED", "Gets it later"
    """It gets it once it is resumed."""

    FILTER_FAILS = "FILTER_FAILS", "Filter fails"
    """Its filter cannot be evaluated: the delivery is HELD, a call fails, a volatile event does not reach it."""

    NOT_FIRST = "NOT_FIRST", "Another takes it"
    """Another subscription takes it: of its subscriber, for a destination, or the one that is called."""

    FILTER = "FILTER", "Filter does not match"
    """Its filter is not true."""

    HEADER_FILTER = "HEADER_FILTER", "Header filter does not match"
    """Its header filter is another text than the event's FILTER_STRING."""

    DESTINATION = "DESTINATION", "For another destination"
    """The event is for another destination."""

    INACTIVE = "INACTIVE"
    """It is INACTIVE, or its subscriber is."""


DECISIONS: Final = """
WITH decided AS MATERIALIZED (
  SELECT s.id, array_position(%(decisions)s::text[], CASE
           WHEN s.id IN (SELECT unnest(%(failing)s::bigint[])) THEN 'FILTER_FAILS'
           WHEN s.is_taken AND s.paused_since IS NOT NULL THEN 'PAUSED'
           WHEN s.is_taken THEN 'RECEIVES'
           WHEN %(is_named)s AND s.id NOT IN (SELECT unnest(%(named)s::bigint[])) THEN 'DESTINATION'
           WHEN s.status <> 'ACTIVE' OR u.status <> 'ACTIVE' THEN 'INACTIVE'
           WHEN s.header_filter_string NOT IN ('', %(filter_string)s) THEN 'HEADER_FILTER'
           WHEN s.id IN (SELECT unnest(%(outranked)s::bigint[])) OR %(is_directed)s AND s.is_behind THEN 'NOT_FIRST'
           ELSE 'FILTER' END) AS rank
    FROM (
    SELECT t.*, bool_or(is_taken) OVER (PARTITION BY subscriber_id ORDER BY position, id
                                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS is_behind
      FROM (SELECT id, subscriber_id, position, status, paused_since, header_filter_string,
                   id IN (SELECT unnest(%(taken)s::bigint[])) AS is_taken
              FROM subscriptions_subscription
             WHERE event_type_id = %(event_type_id)s OR event_pattern = ANY (%(patterns)s::text[])) t) s
    JOIN subscriptions_subscriber u ON u.id = s.subscriber_id),
page AS (
  SELECT id, rank FROM decided
   WHERE (rank, id) > (%(after_rank)s::int, %(after_id)s) AND rank = COALESCE(%(rank)s::int, rank)
   ORDER BY rank, id LIMIT %(limit)s)
SELECT rank, id, NULL FROM page
UNION ALL
SELECT rank, NULL, count(*) FROM decided GROUP BY rank
"""
"""A page of the subscriptions that an event type reaches with what they make of the event, and how many make each.

With a destination, publishing takes the first of a subscriber's subscriptions and does not look at those behind it.
IN with a subquery instead of a join: however many there are, and however few the planner expects, it is a hash table.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What publishing an event would do."""

    message: NewMessage
    route: Route
    deliveries: int
    """How many subscriptions it would be sent to; QUEUE: how many qualify, of each group one."""
    outranked: Collection[int] = ()
    """The subscriptions that qualify for a call and are not called."""
    repeats: int | None = None
    """If its idempotency key has been used for the same event: that message, whose answer it would get again."""

    @property
    def groups(self) -> list[list[int]]:
        """The subscriptions of each QUEUE group."""
        if self.message.kind != EventKind.QUEUE:
            return []
        return [[match.subscription_id for match in group] for group in filter_groups(self.route.matches)]


def plan_of(message: NewMessage, terms: PublishTerms, *, max_open: int | None = None) -> Plan:
    """Return what publishing a checked message would do; raise as `publish`."""
    if message.kind == EventKind.SYNC:
        asked = subscriptions_to_ask(message)
        route = Route(asked[:1], MessageOutcome.ROUTED if asked else MessageOutcome.UNROUTED)
        outranked = [match.subscription_id for match in asked[1:]]
        return Plan(message=message, route=route, deliveries=len(route.matches), outranked=outranked)
    found = dry_run(message, terms, max_open=max_open)
    if isinstance(found, Route):
        return Plan(message=message, route=found, deliveries=len(found.matches))
    route = Route((), MessageOutcome(found.outcome))
    return Plan(message=message, route=route, deliveries=found.deliveries, repeats=found.id)


def plan_of_volatile(message: NewMessage, terms: PublishTerms) -> Plan:
    """Return what publishing a checked message as volatile would do; raise as `route_of_volatile`."""
    route = route_of_volatile(message, max_deliveries=terms.max_deliveries)
    return Plan(message=message, route=route, deliveries=sum(not match.failure for match in route.matches))


class Place(NamedTuple):
    """A place in the list of decisions: the one after this subscription."""

    rank: int
    """Of its decision, from 1."""
    subscription_id: int


@dataclass(frozen=True, slots=True)
class Decided:
    """What a subscription would make of an event, and why."""

    subscription: Subscription
    decision: DryRunDecision
    why: str
    verdict: MatchExplanation
    group: int | None
    """The number of its QUEUE group, from 1."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """A page of decisions."""

    found: Sequence[Decided]
    counts: Mapping[DryRunDecision, int]
    """Of all subscriptions that the event type reaches."""
    next: Place | None
    """Where the next page begins; None: this is the last."""


def decisions(plan: Plan, *, after: Place, limit: int, only: DryRunDecision | None = None) -> Decisions:
    """Return a page of what the event type's subscriptions would make of the event, after a place; `only` these."""
    if plan.repeats:
        return Decisions([], {}, None)
    every, matches, named = [*DryRunDecision], plan.route.matches, named_by(plan.message.destination)
    arguments = {
        "taken": [match.subscription_id for match in matches],
        "failing": [match.subscription_id for match in matches if match.failure],
        "outranked": [*plan.outranked],
        "event_type_id": plan.message.event_type_id,
        "patterns": [*patterns_of(plan.message.event_type)] if plan.message.kind == REACHED_KIND else [],
        "filter_string": plan.message.filter_string or "",
        "is_directed": plan.message.destination is not None,
        "is_named": named is not None,
        "named": [] if named is None else [*named.values_list("pk", flat=True)],
        "decisions": [*map(str, every)],
        "rank": every.index(only) + 1 if only else None,
        "after_rank": after.rank,
        "after_id": after.subscription_id,
        "limit": limit + 1,
    }
    found = rows(DECISIONS, arguments)
    counts = {every[rank - 1]: number for rank, _, number in found if number is not None}
    places = sorted(Place(rank, subscription_id) for rank, subscription_id, number in found if number is None)
    return Decisions([*_explained(plan, places[:limit])], counts, places[limit - 1] if len(places) > limit else None)


def _explained(plan: Plan, places: Sequence[Place]) -> Iterator[Decided]:
    message, every = plan.message, [*DryRunDecision]
    shown = FilterInput(
        message.filter_string,
        document_of(message.headers, message.content_type, message.filter_string, message.body),
    )
    failures = {match.subscription_id: match.failure for match in plan.route.matches}
    first = {match.subscriber_id: match.subscription_id for match in reversed(plan.route.matches)}
    groups = {one: number for number, group in enumerate(plan.groups, 1) for one in group}
    subscriptions = Subscription.objects.select_related("subscriber").in_bulk(
        [place.subscription_id for place in places]
    )
    for place in places:
        if subscription := subscriptions.get(place.subscription_id):
            decision = every[place.rank - 1]
            verdict = judge(
                shown, header_filter_string=subscription.header_filter_string, filter_text=subscription.filter
            )
            why = _why(plan, decision, subscription, first) or failures.get(subscription.pk) or verdict.why
            yield Decided(subscription, decision, why, verdict, groups.get(subscription.pk))


def _why(plan: Plan, decision: DryRunDecision, subscription: Subscription, first: Mapping[int, int]) -> str:
    """Return why, in a sentence; empty where the filters say it."""
    match decision:
        case DryRunDecision.PAUSED:
            return "The subscription is paused: the event is stored, and sent once the subscription is resumed."
        case DryRunDecision.DESTINATION:
            return f"The event is for {plan.message.destination} alone."
        case DryRunDecision.INACTIVE:
            return f"The {'subscriber' if subscription.status == Status.ACTIVE else 'subscription'} is INACTIVE."
        case DryRunDecision.NOT_FIRST if plan.message.kind == EventKind.SYNC:
            return f"Subscription {plan.route.matches[0].subscription_id}, which is older, is called."
        case DryRunDecision.NOT_FIRST:
            return f"Subscription {first[subscription.subscriber_id]}, before it at its subscriber, takes it."
    return ""
