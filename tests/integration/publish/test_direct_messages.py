"""Messages that name their destination: to one of its subscriptions, or to one of each subscriber's."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
from django.test import Client
from structlog.testing import capture_logs

from delivery.models import Delivery, Message
from subscriptions.models import EventKind, EventType, Status, Subscriber
from tests.support import factories
from tests.support.api import EVENT, Answer, problem_of, publish, publish_batch
from tests.support.database import in_other_thread

pytestmark = pytest.mark.django_db

RED = "$$->'Body'->>'colour' = 'red'"
BIG = "$$->'Body'->'n' > '5'"
UNREADABLE = b'{"n": 1e999999}'
"""A number that no filter can compare, and so nobody can tell whether it is big."""


Commits = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def commits(django_capture_on_commit_callbacks: Commits) -> Commits:
    """Let what follows a commit follow within the test's own transaction."""
    return django_capture_on_commit_callbacks


@pytest.fixture
def blue(db: None) -> Subscriber:
    return factories.subscriber("blue")


def sent_to() -> list[tuple[int | None, str]]:
    """Return to which subscriptions deliveries go, and their statuses, in the order of their ids."""
    return [*Delivery.objects.oldest_first().values_list("subscription_id", "status")]


def routing_of(answer: Answer) -> tuple[str, int]:
    """Return outcome and number of deliveries."""
    assert answer.status_code == 202
    return answer.json()["outcome"], answer.json()["deliveries"]


@pytest.mark.behaviour("2.8")
def test_only_the_named_subscriber_gets_it(client: Client, event_type: EventType, blue: Subscriber) -> None:
    factories.subscription(event_type=event_type)
    wanted = factories.subscription(blue, event_type)

    answer = publish(client, Broker_Destination="blue")

    assert routing_of(answer) == ("ROUTED", 1)
    assert "detail" not in answer.json()
    assert sent_to() == [(wanted.pk, "PENDING")]
    assert client.get(answer["Location"]).json()["destination"] == "blue"


@pytest.mark.behaviour("2.8")
@pytest.mark.parametrize(
    ("wishes", "first"),
    [
        ([{"position": 2}, {"position": 1}, {"position": 3}], 1),
        ([{"position": 1}, {"position": 1}], 0),
        ([{"position": 1, "filter": RED}, {"position": 2}], 1),
        ([{"position": 1, "header_filter_string": "us"}, {"position": 2, "header_filter_string": "eu"}], 1),
        ([{"position": 1, "status": Status.INACTIVE}, {"position": 2}], 1),
        ([{"position": 2}, {"position": 1, "event_pattern": "Shop.*"}], 1),
        ([{"position": 1, "event_pattern": "Mill.*"}, {"position": 2, "event_pattern": "*"}], 1),
    ],
)
def test_the_first_qualifying_position_gets_it(
    client: Client, event_type: EventType, blue: Subscriber, wishes: list[dict[str, Any]], first: int
) -> None:
    made = [factories.subscription(blue, event_type, **wish) for wish in wishes]

    answer = publish(client, b'{"colour": "green"}', Broker_Destination="blue", FILTER_STRING="eu")

    assert routing_of(answer) == ("ROUTED", 1)
    assert sent_to() == [(made[first].pk, "PENDING")]


@pytest.mark.behaviour("2.8", "3.6")
@pytest.mark.parametrize("destination", ["blue", "default"])
def test_failing_filters_come_first(client: Client, event_type: EventType, blue: Subscriber, destination: str) -> None:
    failing = factories.subscription(blue, event_type, filter=BIG, position=1)
    factories.subscription(blue, event_type, position=2)

    assert routing_of(publish(client, UNREADABLE, Broker_Destination=destination)) == ("ROUTED", 1)
    assert sent_to() == [(failing.pk, "HELD")]


@pytest.mark.behaviour("2.8")
def test_later_filters_are_not_evaluated(client: Client, event_type: EventType, blue: Subscriber) -> None:
    first = factories.subscription(blue, event_type, position=1)
    factories.subscription(blue, event_type, filter=BIG, position=2)

    publish(client, UNREADABLE, Broker_Destination="blue")

    assert sent_to() == [(first.pk, "PENDING")]


@pytest.mark.behaviour("2.8")
@pytest.mark.parametrize("by", ["position", "id"])
def test_only_the_named_subscription_gets_it(client: Client, event_type: EventType, blue: Subscriber, by: str) -> None:
    factories.subscription(blue, event_type, position=1)
    wanted = factories.subscription(blue, event_type, position=2)
    factories.subscription(event_type=event_type, position=2)
    destination = {"position": "blue/2", "id": f"#{wanted.pk}"}[by]

    answer = publish(client, Broker_Destination=destination)

    assert routing_of(answer) == ("ROUTED", 1)
    assert sent_to() == [(wanted.pk, "PENDING")]
    assert client.get(answer["Location"]).json()["destination"] == destination


@pytest.mark.behaviour("2.8")
def test_of_several_with_the_named_position_the_first_that_qualifies_gets_it(
    client: Client, event_type: EventType, blue: Subscriber
) -> None:
    factories.subscription(blue, event_type, position=1)
    factories.subscription(blue, event_type, position=2, filter=RED)
    wanted = factories.subscription(blue, event_type, position=2)
    factories.subscription(blue, event_type, position=2)

    publish(client, b'{"colour": "green"}', Broker_Destination="blue/2")

    assert sent_to() == [(wanted.pk, "PENDING")]


@pytest.mark.behaviour("2.8")
def test_a_number_is_a_name_and_no_id(client: Client, event_type: EventType) -> None:
    named, other = factories.subscriber("4711"), factories.subscription(event_type=event_type)
    wanted = factories.subscription(named, event_type)

    answers = [publish(client, Broker_Destination=name) for name in ("4711", str(other.pk))]

    assert [routing_of(answer) for answer in answers] == [("ROUTED", 1), ("DEAD_LETTERED", 0)]
    assert sent_to() == [(wanted.pk, "PENDING")]


@pytest.mark.behaviour("2.8", "2.14", "11.2")
@pytest.mark.parametrize("destination", ["blue", "blue/2", "#{}"])
@pytest.mark.parametrize("why", ["filter", "header", "status", "of its subscriber", "event type"])
def test_without_a_match_it_is_discarded(
    client: Client, event_type: EventType, blue: Subscriber, why: str, destination: str, commits: Commits
) -> None:
    inactive = {"status": Status.INACTIVE}
    others: dict[str, dict[str, Any]] = {
        "filter": {"filter": RED},
        "header": {"header_filter_string": "eu"},
        "status": inactive,
    }
    its = None if why == "event type" else event_type
    destination = destination.format(factories.subscription(blue, its, position=2, **others.get(why, {})).pk)
    if destination != "blue":
        factories.subscription(blue, event_type, position=1)
    Subscriber.objects.update(status=Status.INACTIVE if why == "of its subscriber" else Status.ACTIVE)
    factories.subscription(event_type=event_type)

    with capture_logs() as logged, commits(execute=True):
        answer = publish(client, Broker_Destination=destination)

    assert routing_of(answer) == ("DISCARDED", 0)
    assert "is not active, is for other events, or its filters do not let" in answer.json()["detail"]
    assert sent_to() == []
    (message,) = client.get("/api/v1/messages?outcome=DISCARDED").json()["items"]
    assert [(one["event"], one["message_id"], one["destination"]) for one in logged] == [
        ("message.discarded", message["id"], destination)
    ]


@pytest.mark.behaviour("2.8", "2.14")
@pytest.mark.parametrize("destination", ["nobody", "nobody/1", "blue/2", "blue/9999999999", "#999999999999999999"])
def test_an_unknown_destination_is_dead_lettered(
    client: Client, event_type: EventType, blue: Subscriber, destination: str, commits: Commits
) -> None:
    factories.subscription(blue, event_type, position=1)

    with capture_logs() as logged, commits(execute=True):
        answer = publish(client, Broker_Destination=destination)

    assert routing_of(answer) == ("DEAD_LETTERED", 0)
    assert "no such subscriber or subscription" in answer.json()["detail"]
    assert sent_to() == []
    assert client.get(answer["Location"]).json()["outcome"] == "DEAD_LETTERED"
    assert [one["event"] for one in logged] == ["message.dead_lettered"]


@pytest.mark.behaviour("2.8")
def test_default_reaches_each_subscriber_once(client: Client, event_type: EventType, blue: Subscriber) -> None:
    red = factories.subscriber("red")
    wishes = [(blue, 2, ""), (red, 1, RED), (blue, 1, ""), (red, 2, ""), (red, 3, "")]
    made = [factories.subscription(one, event_type, position=place, filter=text) for one, place, text in wishes]
    factories.subscription(event_type=event_type, filter=RED)

    assert routing_of(publish(client, Broker_Destination="default")) == ("ROUTED", 2)
    assert sent_to() == [(made[2].pk, "PENDING"), (made[3].pk, "PENDING")]


@pytest.mark.behaviour("2.8", "2.14")
def test_destination_default_without_qualifying_subscription_is_unrouted(client: Client) -> None:
    assert routing_of(publish(client, Broker_Destination="default")) == ("UNROUTED", 0)


@pytest.mark.behaviour("2.8", "4.1")
def test_batch_items_have_their_own_destinations(client: Client, event_type: EventType, blue: Subscriber) -> None:
    red = factories.subscriber("red")
    to_blue, again_to_blue, to_red = (factories.subscription(one, event_type) for one in (blue, blue, red))
    destinations = ["red", None, "blue", "nobody", "default", "blue"]
    items = [f'{{"event": "{EVENT}", "body": {{}}{said(one)}}}' for one in destinations]

    answer = publish_batch(client, f'{{"events": [{", ".join(items)}]}}')

    outcomes = [(one["outcome"], one["deliveries"]) for one in answer.json()["results"]]
    assert outcomes == [("ROUTED", 1), ("ROUTED", 3), ("ROUTED", 1), ("DEAD_LETTERED", 0), ("ROUTED", 2), ("ROUTED", 1)]
    everybody, once_each = [to_blue, again_to_blue, to_red], [to_blue, to_red]
    expected = [to_red, *everybody, to_blue, *once_each, to_blue]
    assert sent_to() == [(one.pk, "PENDING") for one in expected]


def said(destination: str | None) -> str:
    return f', "destination": "{destination}"' if destination else ""


@pytest.mark.behaviour("2.8", "2.14")
@pytest.mark.parametrize("kind", [EventKind.QUEUE, EventKind.SYNC])
def test_other_kinds_take_no_destination(client: Client, kind: EventKind) -> None:
    factories.event_type("Other", kind)

    assert problem_of(publish(client, event="Other", Broker_Destination="blue")) == (400, "invalid_metadata")
    assert Message.objects.count() == 0


@pytest.mark.parametrize("destination", ["", "a b", "*", "n" * 256, "blue/", "blue/-1", "/1", "#", "#blue", "#1/1"])
def test_an_invalid_text_is_refused_as_destination(client: Client, destination: str) -> None:
    assert problem_of(publish(client, Broker_Destination=destination)) == (400, "invalid_metadata")


@pytest.mark.behaviour("2.6", "2.8")
def test_the_same_key_with_another_destination_is_another_publish(client: Client, blue: Subscriber) -> None:
    first = publish(client, Idempotency_Key="k", Broker_Destination="nobody")
    again = publish(client, Idempotency_Key="k", Broker_Destination="nobody")

    assert again.json() == first.json() | {"replayed": True}
    for destination in ("blue", "default"):
        answer = publish(client, Idempotency_Key="k", Broker_Destination=destination)
        assert problem_of(answer) == (422, "idempotency_key_reused")
    assert problem_of(publish(client, Idempotency_Key="k")) == (422, "idempotency_key_reused")


@pytest.mark.behaviour("2.8", "1.8")
@pytest.mark.django_db(transaction=True)
def test_where_the_first_is_being_deleted_the_next_gets_it(
    client: Client, event_type: EventType, blue: Subscriber, elsewhere: psycopg.Connection[Any]
) -> None:
    first, second = (factories.subscription(blue, event_type, position=place) for place in (1, 2))
    elsewhere.execute("DELETE FROM subscriptions_subscription WHERE id = %s", [first.pk])

    with in_other_thread(lambda: publish(client, Broker_Destination="blue")) as publishing:
        elsewhere.commit()

    assert routing_of(publishing.result()) == ("ROUTED", 1)
    assert sent_to() == [(second.pk, "PENDING")]
