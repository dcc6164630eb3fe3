"""Messages whose subscriptions are chosen by the statement that stores them: the same comes of it as otherwise."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError

from broker_project.core.db import answered_within
from delivery.dispatch import notify
from delivery.models import Delivery, IdempotencyKey, Message
from delivery.publish import publish as publishing
from delivery.publish.errors import TooManyDeliveries
from delivery.publish.idempotency import KeyUse, PublishInProgress
from delivery.publish.publish import KeyReusedError, Publication, publish_terms, publish_together
from delivery.publish.store import NewMessage
from subscriptions.edit import change
from subscriptions.models import DeliveryMode, EventType, Processing, Status, Subscriber, Subscription
from tests.support import factories
from tests.support.spies import spied

pytestmark = pytest.mark.django_db

FILTER = "$$->'Body'->>'n' = '2'"


def new(
    event_type: EventType, body: bytes = b'{"n": 1}', filter_string: str | None = None, key: str | None = None
) -> NewMessage:
    return factories.message(event_type, body, headers=[("X-A", "ä")], filter_string=filter_string, idempotency_key=key)


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
    return spied(monkeypatch, publishing, "_publish_any", lambda publications, *_, **__: len(publications))


@pytest.mark.behaviour("2.1", "4.10")
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("are_keyed", [False, True])
def test_what_is_chosen_and_stored_at_once_is_the_same_as_in_steps(
    wakes: list[Any], in_steps: list[int], are_keyed: bool
) -> None:
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
    keyed = [replace(message, idempotency_key=f"key {number}") for number, message in enumerate(messages)]

    in_several = published(*messages)
    newest = Message.objects.latest("pk").pk
    at_once = published(*(keyed if are_keyed else messages))

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
@pytest.mark.parametrize("key", [None, "k"])
def test_a_change_counts_from_the_next_publish_on(
    event_type: EventType,
    subscription: dict[str, Any],
    subscriber: dict[str, Any],
    expected: list[Any],
    key: str | None,
) -> None:
    one = factories.subscription(event_type=event_type)
    for _ in range(2):
        published(new(event_type))
    newest = Message.objects.latest("pk").pk
    if subscription:
        change(Subscription.objects.filter(pk=one.pk), changes=subscription)
    if subscriber:
        change(Subscriber.objects.filter(pk=one.subscriber_id), changes=subscriber)

    ((answer,),) = published(new(event_type, key=key))

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
@pytest.mark.parametrize("key", [None, "k"])
def test_too_many_deliveries_of_one_message_cost_the_others_nothing(
    event_type: EventType, settings: Any, in_steps: list[int], key: str | None
) -> None:
    few = factories.event_type()
    for _ in range(3):
        factories.subscription(event_type=event_type)
    factories.subscription(event_type=few)
    published(new(event_type), new(few))
    before = Message.objects.count()
    settings.MAX_DELIVERIES = 2

    refused, (accepted,) = published(new(event_type, key=key), new(few))

    assert isinstance(refused, TooManyDeliveries)
    assert str(refused).startswith("This would become 3 deliveries, and one request may become 2:")
    assert accepted.deliveries == 1
    assert Message.objects.count() == before + 1
    assert in_steps == [2, 2]


@pytest.fixture
def plain(event_type: EventType) -> EventType:
    """An event type with a subscription without a filter, as the last publishes have found out."""
    factories.subscription(event_type=event_type)
    for _ in range(2):
        published(new(event_type))
    return event_type


@pytest.mark.behaviour("2.6")
def test_messages_with_keys_are_stored_once_by_the_same_statement(plain: EventType, in_steps: list[int]) -> None:
    (unkeyed,), (a,), (b,) = published(new(plain), new(plain, key="a"), new(plain, key="b"))
    assert in_steps == []
    columns = "key", "publisher_id", "message_id", "outcome", "deliveries_count", "fingerprint"
    assert [*IdempotencyKey.objects.order_by("key").values_list(*columns)] == [
        (key, None, answer.id, "ROUTED", 1, new(plain, key=key).fingerprint) for key, answer in (("a", a), ("b", b))
    ]
    kept = IdempotencyKey.objects.get(key="a").expires_at - Message.objects.get(pk=a.id).published_at
    assert abs(kept - timedelta(hours=publish_terms().key_hours)) < timedelta(seconds=1)

    (a_again,), b_reused, (c,), (c_again,), (other,) = published(
        new(plain, key="a"), new(plain, b"2", key="b"), new(plain, key="c"), new(plain, key="c"), new(plain)
    )

    assert (a_again.id, a_again.replayed, c_again.id, c_again.replayed) == (a.id, True, c.id, True)
    assert isinstance(b_reused, KeyReusedError)
    assert in_steps == [3]
    stored_ids = {one.id for one in (unkeyed, a, b, c, other)}
    assert {*Message.objects.order_by("pk").values_list("pk", flat=True)[2:]} == stored_ids
    assert {*Delivery.objects.values_list("message_id", flat=True)} >= stored_ids
    assert Message.objects.count() == Delivery.objects.count() == 2 + 5


@pytest.mark.behaviour("2.6", "2.7")
def test_a_repeat_that_fails_costs_what_is_stored_beside_it_nothing(
    plain: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_away(*_: object, **__: object) -> None:
        raise OperationalError("gone")

    published(new(plain, key="a"))
    before = Message.objects.count()
    monkeypatch.setattr(publishing, "_publish_any", is_away)
    (other,), repeat, (b,) = published(new(plain), new(plain, key="a"), new(plain, key="b"))
    assert isinstance(repeat, OperationalError)
    assert [*Message.objects.order_by("pk").values_list("pk", flat=True)[before:]] == [other.id, b.id]


@pytest.mark.behaviour("2.6")
@pytest.mark.django_db(transaction=True)
def test_a_key_of_a_publish_that_is_running_is_refused_without_waiting(
    plain: EventType, elsewhere: psycopg.Connection[Any]
) -> None:
    elsewhere.execute("SELECT pg_advisory_xact_lock(hashtextextended('key a', 0))")
    refused, (stored_beside,) = published(new(plain, key="a"), new(plain, key="b"))
    elsewhere.rollback()
    ((afterwards,),) = published(new(plain, key="a"))
    assert isinstance(refused, PublishInProgress)
    assert (stored_beside.replayed, afterwards.replayed) == (False, False)
    assert Message.objects.count() == 2 + 2


@pytest.mark.behaviour("2.6")
@pytest.mark.django_db(transaction=True)
def test_a_group_does_not_wait_for_who_deletes_a_key_of_it(
    plain: EventType, elsewhere: psycopg.Connection[Any]
) -> None:
    ((a,),) = published(new(plain, key="a"))
    elsewhere.execute("DELETE FROM delivery_idempotencykey")
    with answered_within(5.0):
        (other,), (again,), (b,) = published(new(plain), new(plain, key="a"), new(plain, key="b"))
    elsewhere.rollback()
    assert (again.id, again.replayed) == (a.id, True)
    assert Message.objects.filter(pk__in=[other.id, b.id]).count() == 2


@pytest.mark.behaviour("2.6")
def test_what_its_event_type_does_not_take_any_more_is_not_stored_when_its_key_has_just_been_deleted(
    plain: EventType,
) -> None:
    before = Message.objects.count()
    repeat = new(plain, key="a")
    repeat = replace(repeat, repeats=KeyUse(repeat.fingerprint, 7, "ROUTED", 1))
    ((answer,),) = published(repeat)
    assert (answer.id, answer.replayed, Message.objects.count()) == (7, True, before)


@pytest.mark.behaviour("2.6", "2.7")
def test_a_batch_with_keys_is_stored_as_a_whole_or_not_at_all(plain: EventType, in_steps: list[int]) -> None:
    published(new(plain, key="a"))
    batches = [[new(plain, key="b"), new(plain, body, key="a")] for body in (b"other", b'{"n": 1}')]
    refused, answers = publish_together([Publication(batch) for batch in batches], publish_terms())
    assert isinstance(refused, KeyReusedError)
    assert not isinstance(answers, Exception)
    assert [answer.replayed for answer in answers] == [False, True]
    assert in_steps == [2]
    assert Message.objects.count() == 2 + 1 + 1
