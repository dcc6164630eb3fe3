"""Deleting subscriptions while messages are published for them, in really concurrent transactions (contract 1.8)."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, LiteralString

import psycopg
import pytest
from django.db import transaction
from django.test import Client

from delivery.models import Delivery
from delivery.publish.publish import publish_terms
from delivery.replay.resubmit import NotResubmittable, resubmit
from subscriptions import edit
from subscriptions.models import EventType, Subscriber, Subscription
from tests.support import factories
from tests.support.api import client_of, problem_of, publish
from tests.support.broker import publish_numbered
from tests.support.database import do_and_disconnect, execute, in_other_thread, in_parallel
from tests.support.replays import end_open, of, run_replay

pytestmark = [pytest.mark.behaviour("1.8"), pytest.mark.django_db(transaction=True)]

CHOSEN: LiteralString = "LOCK TABLE delivery_message IN EXCLUSIVE MODE"
"""Lets a publish choose its subscriptions, and stop before it stores anything."""
DELETION: LiteralString = "DELETE FROM subscriptions_subscription WHERE id = %s"
PUBLISHES: list[dict[str, Any]] = [{}, {"Broker_Destination": "blue"}, {"Broker_Destination": "default"}]
ORPHANS: LiteralString = """
SELECT count(*) FROM delivery_delivery d
 WHERE NOT EXISTS (SELECT FROM subscriptions_subscription s WHERE s.id = d.subscription_id)
"""


@pytest.fixture
def blue(event_type: EventType) -> Subscriber:
    return factories.subscriber("blue")


@pytest.fixture(params=["", "$$->'Body' is not null"])
def wanted(request: pytest.FixtureRequest, event_type: EventType, blue: Subscriber) -> Subscription:
    return factories.subscription(blue, event_type, filter=request.param)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a deletion wait, however busy the machine is."""
    monkeypatch.setattr(edit, "LOCK_TIMEOUT", "SET LOCAL lock_timeout = 0")


def delete(subscription: Subscription) -> Any:
    return client_of().delete(f"/api/v1/subscriptions/{subscription.pk}")


def refused_for_deliveries(answer: Any) -> bool:
    return problem_of(answer) == (409, "still_in_use") and "cancel them" in answer.json()["detail"]


def resubmitted(delivery_id: int) -> int:
    return resubmit(delivery_id, publish_terms(), edit=None, max_bytes=100)


@pytest.mark.parametrize("headers", PUBLISHES)
def test_a_deletion_waits_for_a_publish_that_has_chosen_and_not_stored(
    client: Client, wanted: Subscription, elsewhere: psycopg.Connection[Any], headers: dict[str, Any], unhurried: None
) -> None:
    elsewhere.execute(CHOSEN)
    with (
        in_other_thread(lambda: publish(client, **headers)) as publishing,
        in_other_thread(lambda: delete(wanted)) as deleting,
    ):
        assert (publishing.done(), deleting.done()) == (False, False)
        elsewhere.rollback()
    assert publishing.result().json()["deliveries"] == 1
    assert refused_for_deliveries(deleting.result())
    assert Delivery.objects.get().subscription_id == wanted.pk


@pytest.mark.parametrize("headers", PUBLISHES)
@pytest.mark.parametrize(("is_deleted", "outcome"), [(True, ("UNROUTED", 0)), (False, ("ROUTED", 1))])
def test_a_publish_waits_for_a_deletion(
    client: Client,
    wanted: Subscription,
    elsewhere: psycopg.Connection[Any],
    headers: dict[str, Any],
    is_deleted: bool,
    outcome: tuple[str, int],
) -> None:
    assert publish(client).json()["deliveries"] == 1  # statements are prepared, and the process knows of the filter
    Delivery.objects.all().delete()
    elsewhere.execute(DELETION, [wanted.pk])
    with in_other_thread(lambda: publish(client, **headers)) as publishing:
        assert not publishing.done()
        elsewhere.commit() if is_deleted else elsewhere.rollback()
    unrouted = "DISCARDED" if headers.get("Broker_Destination") == "blue" else outcome[0]
    answer = publishing.result().json()
    assert (answer["outcome"], answer["deliveries"]) == ((unrouted, 0) if is_deleted else outcome)
    assert Delivery.objects.count() == outcome[1]


def replayed(delivery_id: int) -> None:
    run_replay(of(Subscription.objects.get(pk=Delivery.objects.get(pk=delivery_id).subscription_id)))


@pytest.mark.parametrize("create", [resubmitted, replayed])
def test_a_deletion_waits_for_repeats(wanted: Subscription, create: Callable[[int], object], unhurried: None) -> None:
    publish_numbered(wanted.event_type, 1)
    end_open()
    old = Delivery.objects.get().pk
    creating = transaction.atomic()
    creating.__enter__()
    create(old)
    with in_other_thread(lambda: delete(wanted)) as deleting:
        assert not deleting.done()
        creating.__exit__(None, None, None)
    assert refused_for_deliveries(deleting.result())
    assert [one.resubmit_of for one in Delivery.objects.open()] == [old]


def test_a_subscription_being_deleted_repeats_nothing(wanted: Subscription, elsewhere: psycopg.Connection[Any]) -> None:
    publish_numbered(wanted.event_type, 1)
    end_open()
    old = Delivery.objects.get().pk
    elsewhere.execute(DELETION, [wanted.pk])
    with in_other_thread(lambda: resubmitted(old)) as resubmitting:
        assert not resubmitting.done()
        elsewhere.commit()
    with pytest.raises(NotResubmittable, match="not ACTIVE any more"):
        resubmitting.result()
    assert not Delivery.objects.open().exists()


def test_a_deletion_gives_up_in_the_end(client: Client, wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit, "LOCK_TIMEOUT", "SET LOCAL lock_timeout = '50ms'")
    with transaction.atomic():
        publish(client)
        with in_other_thread(lambda: delete(wanted)) as deleting:
            pass
        transaction.set_rollback(True)
    assert problem_of(deleting.result()) == (409, "still_in_use")
    assert deleting.result().json()["detail"].endswith("takes long; try again.")
    assert delete(wanted).status_code == 204


def test_deletions_at_the_same_time_do_not_block_each_other(
    event_type: EventType, elsewhere: psycopg.Connection[Any], unhurried: None
) -> None:
    first, second = (factories.subscription(event_type=event_type) for _ in range(2))
    elsewhere.execute("SELECT FROM subscriptions_subscription FOR KEY SHARE")
    with in_other_thread(lambda: delete(first)) as one, in_other_thread(lambda: delete(second)) as other:
        elsewhere.rollback()
    assert [one.result().status_code, other.result().status_code] == [204, 204]


def test_whatever_comes_first_no_delivery_is_without_its_subscription(
    client: Client, event_type: EventType, blue: Subscriber, unhurried: None
) -> None:
    is_over = threading.Event()

    def publish_on() -> int:
        stored = 0
        while not is_over.is_set():
            stored += publish(client).json()["deliveries"]
        return stored

    def create_and_delete() -> list[int]:
        answers = [delete(factories.subscription(blue, event_type)).status_code for _ in range(60)]
        is_over.set()
        return answers

    with ThreadPoolExecutor(2) as threads:
        publishing = [threads.submit(do_and_disconnect, publish_on) for _ in range(2)]
        answers = create_and_delete()
    assert {*answers} <= {204, 409}
    assert Subscription.objects.count() == answers.count(409)
    assert Delivery.objects.count() == sum(one.result() for one in publishing)
    assert execute(ORPHANS) == [(0,)]


@pytest.mark.parametrize("headers", PUBLISHES)
def test_publishes_write_to_no_subscription(client: Client, wanted: Subscription, headers: dict[str, Any]) -> None:
    others = [client_of(factories.publisher()) for _ in range(2)]
    before = row_of(wanted)
    with transaction.atomic():
        assert publish(client, **headers).json()["deliveries"] == 1
        for other in others:
            (answer,) = in_parallel(1, partial(publish, other, **headers))
            assert answer.json()["deliveries"] == 1
        assert row_of(wanted) == before


def row_of(subscription: Subscription) -> Any:
    """Return where its row is, and who has locked or changed it."""
    return execute("SELECT ctid::text, xmax::text FROM subscriptions_subscription WHERE id = %s", [subscription.pk])[0]
