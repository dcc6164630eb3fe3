"""Messages whose subscriptions are chosen by the statement that stores them: the same comes of it as otherwise."""

from collections.abc import Sequence
from typing import Any

import pytest

from delivery.dispatch import notify
from delivery.models import Delivery, Message
from delivery.publish import publish as publishing
from delivery.publish.errors import TooManyDeliveries
from delivery.publish.publish import Publication, publish_terms, publish_together
from delivery.publish.store import NewMessage
from subscriptions.edit import change
from subscriptions.models import DeliveryMode, EventType, Processing, Status, Subscriber, Subscription
from tests.support import factories

pytestmark = pytest.mark.django_db

FILTER = "$$->'Body'->>'n' = '2'"


def new(event_type: EventType, body: bytes = b'{"n": 1}', filter_string: str | None = None) -> NewMessage:
    return NewMessage(
        event_type_id=event_type.pk,
        event_type=event_type.name,
        body=body,
        content_type="application/json",
        headers=[("X-A", "ä")],
        filter_string=filter_string,
        idempotency_key=None,
    )


def published(*messages: NewMessage) -> list[Any]:
    return publish_together([Publication([message]) for message in messages], publish_terms())


def stored(since: int = 0) -> list[Sequence[Any]]:
    """Return what is stored of messages after `since`, without ids and times."""
    columns = [
        *("event_type_id", "body", "size", "content_type", "headers", "filter_string", "destination", "expires_at"),
        *("not_before", "copy_of", "outcome", "deliveries_count", "publisher_id"),
    ]
    messages = {one["id"]: one for one in Message.objects.filter(pk__gt=since).order_by("pk").values("id", *columns)}
    open_columns = ("line_id", "subscription_id", "group_id", "status", "size", "reason", "waits_for", "ordering_key")
    return [
        (
            [one[name] for name in columns],
            [*Delivery.objects.filter(message_id=message_id).oldest_first().values_list(*open_columns)],
        )
        for message_id, one in messages.items()
    ]


@pytest.fixture
def wakes(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(notify, "wake", lambda queue, line_ids: calls.append((queue, line_ids)))
    return calls


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages of each publish that took several statements."""
    calls: list[int] = []
    publish_any = publishing._publish_any

    def counted(publications: Sequence[Publication], terms: Any) -> Any:
        calls.append(len(publications))
        return publish_any(publications, terms)

    monkeypatch.setattr(publishing, "_publish_any", counted)
    return calls


@pytest.mark.behaviour("2.1", "4.10")
@pytest.mark.django_db(transaction=True)
def test_what_is_chosen_and_stored_at_once_is_the_same_as_in_steps(wakes: list[Any], in_steps: list[int]) -> None:
    one, other = factories.event_type("Shop.Order.Placed"), factories.event_type("Shop.Order.Paid")
    both = factories.subscriber()
    for event_type in (one, other):
        factories.subscription(both, event_type, position=2)
    for pattern in ("Shop.*", "Shop.Order.*", "Other.*"):
        factories.subscription(both if pattern == "Shop.*" else None, event_pattern=pattern, position=1)
    factories.subscription(event_type=one, header_filter_string="eu")
    factories.subscription(event_type=one, status=Status.INACTIVE)
    factories.subscription(factories.subscriber(status=Status.INACTIVE), one)
    messages = [new(one), new(other, b"2"), new(one, b"3"), new(one, b"4", filter_string="eu")]

    in_several = published(*messages)
    newest = Message.objects.latest("pk").pk
    at_once = published(*messages)

    assert in_steps == [4]
    assert stored(newest) == stored()[:4]
    assert [[answer.deliveries for answer in answers] for answers in at_once] == [[3], [3], [3], [4]]
    assert [[(a.outcome, a.deliveries) for a in answers] for answers in at_once] == [
        [(a.outcome, a.deliveries) for a in answers] for answers in in_several
    ]
    ids = [answer.id for answers in at_once for answer in answers]
    assert ids == sorted(Message.objects.filter(pk__gt=newest).values_list("pk", flat=True))
    of_deliveries = Delivery.objects.filter(message_id__gt=newest).oldest_first().values_list("message_id", flat=True)
    assert [*of_deliveries] == [ids[0]] * 3 + [ids[1]] * 3 + [ids[2]] * 3 + [ids[3]] * 4
    assert len(wakes) == 2
    assert wakes[0] == wakes[1]


@pytest.mark.behaviour("3.7", "2.2")
@pytest.mark.parametrize(
    ("subscription", "subscriber", "expected"),
    [
        ({}, {}, ["PENDING", None]),
        ({"filter": FILTER}, {}, []),
        ({"filter": FILTER.replace("2", "1")}, {}, ["PENDING", None]),
        ({"header_filter_string": "eu"}, {}, []),
        ({"status": Status.INACTIVE}, {}, []),
        ({}, {"status": Status.INACTIVE}, []),
        ({"delivery_mode": DeliveryMode.PULL}, {}, ["PENDING", None]),
        ({}, {"processing": Processing.KEYED, "concurrency": 2, "ordering_key": "$$->'Body'->>'n'"}, ["PENDING", "1"]),
    ],
)
def test_a_change_counts_from_the_next_publish_on(
    event_type: EventType, subscription: dict[str, Any], subscriber: dict[str, Any], expected: list[Any]
) -> None:
    one = factories.subscription(event_type=event_type)
    for _ in range(2):
        published(new(event_type))
    newest = Message.objects.latest("pk").pk
    if subscription:
        change(Subscription.objects.filter(pk=one.pk), changes=subscription)
    if subscriber:
        change(Subscriber.objects.filter(pk=one.subscriber_id), changes=subscriber)

    ((answer,),) = published(new(event_type))

    found = Delivery.objects.filter(message_id__gt=newest).values_list("status", "ordering_key")
    assert [value for row in found for value in row] == expected
    assert answer.deliveries == len(found)
    assert answer.outcome == Message.objects.latest("pk").outcome == ("ROUTED" if expected else "UNROUTED")


@pytest.mark.behaviour("2.1", "3.6")
def test_a_filter_beside_others_is_evaluated_for_all(event_type: EventType, in_steps: list[int]) -> None:
    factories.subscription(event_type=event_type)
    for _ in range(2):
        published(new(event_type))
    factories.subscription(event_type=event_type, filter=FILTER)

    answers = published(new(event_type), new(event_type, b'{"n": 2}'))

    assert [one.deliveries for (one,) in answers] == [1, 2]
    assert in_steps == [1, 2]
    factories.subscription(event_type=event_type)
    assert [one.deliveries for (one,) in published(new(event_type))] == [2]
    assert in_steps == [1, 2, 1]


@pytest.mark.behaviour("2.7", "2.1")
def test_too_many_deliveries_of_one_message_cost_the_others_nothing(
    event_type: EventType, settings: Any, in_steps: list[int]
) -> None:
    few = factories.event_type()
    for _ in range(3):
        factories.subscription(event_type=event_type)
    factories.subscription(event_type=few)
    published(new(event_type), new(few))
    before = Message.objects.count()
    settings.MAX_DELIVERIES = 2

    refused, (accepted,) = published(new(event_type), new(few))

    assert isinstance(refused, TooManyDeliveries)
    assert str(refused).startswith("This would become 3 deliveries, and one request may become 2:")
    assert accepted.deliveries == 1
    assert Message.objects.count() == before + 1
    assert in_steps == [2, 2]
