"""Dry runs of a publish: who would get the event, and why each other subscription would not (contract 2.15)."""

from dataclasses import replace
from typing import Any, Final

from django.conf import settings
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from broker_project.core.api.bodies import RawParser
from broker_project.core.api.fields import NullableText, OneOfField
from broker_project.core.api.pagination import Order, PageQuery, decoded_cursor, encoded_cursor, query_of, url_of
from broker_project.core.api.records import operation
from delivery.api.publish import HEADERS, NOT_DELIVERED, ONE_EVENT, REFUSALS, max_open_of
from delivery.api.publish_requests import event_in
from delivery.api.sync_and_volatile import check_call, check_volatile, is_volatile
from delivery.api.trials import FilterResultSerializer, HeaderFilterSerializer
from delivery.models import MessageOutcome
from delivery.playground.dry_run import Decided, DryRunDecision, Place, Plan, decisions, plan_of, plan_of_volatile
from delivery.publish.check import ANY_KIND, Submission, check
from delivery.publish.errors import RefusedItems
from delivery.publish.publish import publish_terms
from delivery.publish.store import NewMessage
from subscriptions.api.permissions import MayPublish, key_of
from subscriptions.filters import MatchExplanation
from subscriptions.models import DeliveryMode, EventKind, KeyKind, Scope

ORDER: Final = Order("dry-run")
START: Final = Place(0, 0)


class DryRunQuery(PageQuery):
    """Which subscriptions are listed."""

    decision = OneOfField([one.value for one in DryRunDecision], help_text="Only subscriptions with this decision.")


class DecidedSerializer(serializers.Serializer[Decided]):
    """What a subscription would make of the event."""

    subscription_id = serializers.IntegerField(source="subscription.pk")
    subscriber = serializers.CharField(source="subscription.subscriber.name")
    delivery_mode = serializers.ChoiceField(DeliveryMode.choices, source="subscription.delivery_mode")
    decision = serializers.ChoiceField([one.value for one in DryRunDecision])
    why = serializers.CharField()
    group = serializers.IntegerField(allow_null=True, help_text="QUEUE: the number of its group; one of each gets it.")
    header_filter = HeaderFilterSerializer(source="verdict.header_filter", allow_null=True, help_text="Null: not set.")
    filter = FilterResultSerializer(source="verdict.filter", allow_null=True, help_text="Null: not set.")


class DryRunSerializer(serializers.Serializer[Any]):
    """What publishing the event would do."""

    kind = serializers.ChoiceField(EventKind.choices)
    outcome = serializers.ChoiceField(MessageOutcome.choices)
    detail = NullableText(help_text="Why its destination does not get it.")
    deliveries = serializers.IntegerField(
        help_text="What the answer to the publish would say; SYNC: 1 if it is called."
    )
    groups = serializers.IntegerField(help_text="QUEUE: how many groups get it, one endpoint of each.")
    repeats = serializers.IntegerField(
        allow_null=True, help_text="The message that was published with this idempotency key: nothing would be stored."
    )
    counts = serializers.DictField(
        child=serializers.IntegerField(), help_text="How many subscriptions of the event type have which decision."
    )
    subscriptions = DecidedSerializer(
        many=True,
        help_text="By decision, then by id. A publisher's key sees what filters read in its event, and not what they"
        " compare it with.",
    )
    next = serializers.URLField(allow_null=True, help_text="Where to post the same event for the next subscriptions.")


@operation(
    "post",
    Scope.PUBLISH,
    MayPublish,
    parser_classes=[RawParser],
    parameters=[*HEADERS, DryRunQuery],
    request=ONE_EVENT,
    responses=DryRunSerializer,
    problems=REFUSALS,
)
def dry_run_event(request: Request, event_type: str) -> Response:
    """Dry-run an event: who would get it, and why each other subscription would not; nothing is stored or sent.

    Takes what publishing the event takes, makes the same checks, and refuses it for the same reasons. No id and no
    idempotency key is used up. The request counts towards the key's rate limit.
    """
    query = query_of(request, DryRunQuery)
    key = key_of(request)
    draft, volatile = event_in(request, event_type), is_volatile(request)
    submission = Submission([draft], key.publisher_id, kinds=ANY_KIND, is_volatile=volatile)
    try:
        (message,) = check(submission, max_bytes=settings.MAX_BODY_BYTES)
        plan = _plan_of(request, message)
    except RefusedItems as refused:
        raise refused.refusals[0] from None
    after = Place(*decoded_cursor(query["cursor"], ORDER)[1]) if "cursor" in query else START
    only = DryRunDecision(query["decision"]) if "decision" in query else None
    page = decisions(plan, after=after, limit=query["limit"], only=only)
    is_publisher = key.kind == KeyKind.PUBLISHER
    answer = {
        "kind": message.kind,
        "outcome": plan.route.outcome,
        "detail": NOT_DELIVERED.get(plan.route.outcome),
        "deliveries": plan.deliveries,
        "groups": len(plan.groups),
        "repeats": plan.repeats,
        "counts": page.counts,
        "subscriptions": [
            replace(one, verdict=_without_constants(one.verdict)) if is_publisher else one for one in page.found
        ],
        "next": url_of(request, encoded_cursor(ORDER, page.next) if page.next else None),
    }
    data = DryRunSerializer(answer).data
    for found in data["subscriptions"]:
        if is_publisher and found["header_filter"]:
            found["header_filter"]["expected"] = ""
    return Response(data)


def _plan_of(request: Request, message: NewMessage) -> Plan:
    """Return what the publish would do; raise as it does."""
    if message.kind == EventKind.SYNC:
        check_call(request)
    elif is_volatile(request):
        check_volatile(request, message)
        return plan_of_volatile(message, publish_terms())
    return plan_of(message, publish_terms(), max_open=max_open_of(request))


def _without_constants(verdict: MatchExplanation) -> MatchExplanation:
    """Return what a publisher sees of a filter: what was read in its event, not what it is compared with."""
    found = verdict.filter and replace(
        verdict.filter, terms=tuple(replace(term, text="") for term in verdict.filter.terms)
    )
    return replace(verdict, filter=found)
