"""How many messages a publisher may have that have not ended: beyond it nothing is stored."""

import json
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client

from broker_project.stack.load.wait import wait_until
from delivery.models import Delivery, IdempotencyKey, Message
from delivery.publish import open_messages
from delivery.publish import publish as publishing
from delivery.publish.open_messages import OpenMessages, TooManyOpenMessages
from subscriptions.models import EventType, Publisher
from tests.support import factories
from tests.support.api import EVENT, client_of, problem_of, publish, publish_batch
from tests.support.database import execute

pytestmark = pytest.mark.django_db


@pytest.fixture
def event_type() -> EventType:
    """An event type that two subscriptions want."""
    made = factories.event_type(EVENT)
    for _ in range(2):
        factories.subscription(event_type=made)
    return made


def limited_to(number: int | None) -> tuple[Publisher, Client]:
    publisher = factories.publisher(max_open_messages=number)
    return publisher, client_of(publisher)


def end(*messages: int) -> None:
    """Let the deliveries of these messages be gone."""
    execute("DELETE FROM delivery_open WHERE message_id = ANY(%s)", [[*messages]])


@pytest.mark.parametrize("limit", [1, 3])
def test_a_publisher_has_at_most_its_limit_of_open_messages(event_type: EventType, limit: int) -> None:
    _, client = limited_to(limit)
    assert [publish(client).status_code for _ in range(limit)] == [202] * limit
    refused = publish(client, Idempotency_Key="again")
    assert problem_of(refused) == (429, "too_many_open_messages")
    assert (refused.json()["limit"], refused.json()["open"], refused["Retry-After"]) == (limit, limit, "1")
    assert (Message.objects.count(), Delivery.objects.count()) == (limit, 2 * limit)
    assert not IdempotencyKey.objects.exists()


def test_an_ended_message_makes_room_for_another(event_type: EventType) -> None:
    _, client = limited_to(2)
    first, _ = [publish(client).json()["id"] for _ in range(2)]
    assert publish(client).status_code == 429
    end(first)
    wait_until(lambda: publish(client).status_code == 202)
    assert publish(client).status_code == 429


def test_a_batch_that_would_exceed_it_is_refused_whole(event_type: EventType) -> None:
    _, client = limited_to(3)
    items = [{"event": EVENT, "body": {}}] * 3
    assert publish(client).status_code == 202
    assert problem_of(publish_batch(client, json.dumps({"events": items}))) == (429, "too_many_open_messages")
    assert Message.objects.count() == 1
    assert publish_batch(client, json.dumps({"events": items[:2]})).status_code == 202
    assert publish(client).status_code == 429


def test_a_message_without_deliveries_is_not_open(event_type: EventType) -> None:
    _, client = limited_to(1)
    factories.event_type("Unwanted")
    assert [publish(client, event="Unwanted").status_code for _ in range(3)] == [202] * 3
    assert [publish(client).status_code for _ in range(2)] == [202, 429]
    assert publish(client, event="Unwanted").status_code == 202
    items = [{"event": name, "body": {}} for name in ("Unwanted", "Unwanted", EVENT)]
    assert publish_batch(client, json.dumps({"events": items[:2]})).status_code == 202
    assert problem_of(publish_batch(client, json.dumps({"events": items}))) == (429, "too_many_open_messages")
    assert Delivery.objects.count() == 2


def test_a_batch_that_there_will_never_be_room_for_is_not_to_be_sent_again(event_type: EventType) -> None:
    _, client = limited_to(1)
    factories.event_type("Unwanted")
    items = [{"event": name, "body": {}} for name in ("Unwanted", EVENT, EVENT)]
    refused = publish_batch(client, json.dumps({"events": items}))
    assert (problem_of(refused), "Retry-After" in refused) == ((422, "batch_exceeds_open_limit"), False)
    assert refused.json()["detail"].startswith("2 of these events have deliveries")
    assert not Message.objects.exists()


def test_a_repeated_publish_is_answered_at_the_limit(event_type: EventType) -> None:
    _, client = limited_to(1)
    first = publish(client, Idempotency_Key="one")
    again = publish(client, Idempotency_Key="one")
    assert (again.status_code, again["Idempotency-Replayed"]) == (202, "true")
    assert first.json()["id"] == again.json()["id"]


def test_publishers_have_separate_limits(event_type: EventType) -> None:
    _, client = limited_to(1)
    others = [limited_to(1)[1], limited_to(None)[1], client_of()]
    assert [publish(one).status_code for one in (client, *others)] == [202] * 4
    assert publish(client).status_code == 429


def test_a_new_limit_counts_messages_that_were_open_before(event_type: EventType) -> None:
    publisher, client = limited_to(None)
    published = [publish(client).json()["id"] for _ in range(6)]
    Publisher.objects.filter(pk=publisher.pk).update(max_open_messages=2)
    assert publish(client).json()["open"] == 3  # as many as had to be counted
    end(*published[:4])
    wait_until(lambda: publish(client).json().get("open") == 2)
    end(*published[4:])
    wait_until(lambda: publish(client).status_code == 202)


def test_messages_of_other_processes_are_counted_a_moment_later(event_type: EventType) -> None:
    publisher, client = limited_to(None)
    here = OpenMessages(publisher.pk)
    here.refresh(2)
    for _ in range(2):
        publish(client)

    def is_known() -> bool:
        here.refresh(2)
        try:
            with here.room_for(1, 2):
                return False
        except TooManyOpenMessages as refused:
            return refused.present == 2

    wait_until(is_known)


@pytest.mark.django_db(transaction=True)
def test_messages_that_another_process_commits_late_are_counted(event_type: EventType) -> None:
    publisher, client = limited_to(None)
    other, is_stored, may_end = client_of(publisher), Event(), Event()
    here = OpenMessages(publisher.pk)

    def look() -> None:
        here._refresh_again_at = 0.0
        here.refresh(2)

    def publish_slowly() -> None:
        with transaction.atomic():
            publish(other)
            is_stored.set()
            assert may_end.wait(timeout=30)
        connection.close()

    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(publish_slowly)
        assert is_stored.wait(timeout=30)
        publish(client)
        for _ in range(4):
            look()
        may_end.set()
        slow.result()
    look()
    with pytest.raises(TooManyOpenMessages) as refused, here.room_for(1, 2):
        pass
    assert refused.value.present == 2


def test_a_publish_that_fails_takes_no_room(event_type: EventType) -> None:
    here = OpenMessages(limited_to(1)[0].pk)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), here.room_for(1, 1):
            raise ZeroDivisionError


def away(*_: object) -> Any:
    raise OperationalError("the database did not answer in time")


def test_nothing_is_stored_until_the_open_messages_have_been_counted(
    event_type: EventType, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, client = limited_to(None)
    for _ in range(2):
        publish(client)
    Publisher.objects.filter(pk=publisher.pk).update(max_open_messages=2)
    with monkeypatch.context() as failing:
        failing.setattr(open_messages, "rows", away)
        failing.setattr(open_messages, "REFRESH_SECONDS", 600.0)
        assert [publish(client).status_code for _ in range(2)] == [503, 503]
    assert problem_of(publish(client)) == (429, "too_many_open_messages")
    assert Message.objects.count() == 2


@pytest.mark.behaviour("11.5")
def test_those_who_wait_for_a_look_that_fails_do_not_look_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    here, asked, looks = OpenMessages(1), Semaphore(0), []
    is_free = here._refreshing.acquire

    def acquire(*, blocking: bool) -> bool:
        asked.release()
        return is_free(blocking=blocking)

    def fail(*arguments: object) -> Any:
        looks.append(1)
        for _ in range(4):
            assert asked.acquire(timeout=30)
        away(*arguments)

    monkeypatch.setattr(here, "_refreshing", SimpleNamespace(acquire=acquire, release=here._refreshing.release))
    monkeypatch.setattr(open_messages, "rows", fail)
    with ThreadPoolExecutor(4) as threads:
        failures = [one.exception() for one in [threads.submit(here.refresh, 1) for _ in range(4)]]
    assert [type(failure) for failure in failures] == [OperationalError] * 4
    assert len(looks) == 1


@pytest.mark.parametrize("at", ["create_callbacks", "remember"])
@pytest.mark.parametrize("seen", [False, True])
def test_a_message_is_counted_once_while_its_transaction_goes_on(
    event_type: EventType, monkeypatch: pytest.MonkeyPatch, at: str, *, seen: bool
) -> None:
    publisher, client = limited_to(2)
    present: list[int] = []

    def look_meanwhile(*_: object, **__: object) -> None:
        here = open_messages._publishers[publisher.pk]
        found = [(Message.objects.get().pk,)] if seen else []  # before or after the commit
        answers = {open_messages.RUNNING: [(1, 1)], open_messages.NEWEST: [(0,)], open_messages.ALL: found}
        with monkeypatch.context() as of_another_thread:
            of_another_thread.setattr(open_messages, "rows", lambda statement, *_: answers[statement])
            here._refresh_again_at = 0.0
            here.refresh(2)
        with pytest.raises(TooManyOpenMessages) as refused, here.room_for(2, 2):
            pass
        present.append(refused.value.present)

    with monkeypatch.context() as patched:
        patched.setattr(publishing, at, look_meanwhile)
        assert publish(client).status_code == 202
    assert present == [1]
    assert [publish(client).status_code for _ in range(2)] == [202, 429]


@pytest.mark.parametrize(("failure", "expected"), [(ZeroDivisionError, 202), (OperationalError, 429)])
def test_what_was_not_committed_makes_room_again_unless_nobody_knows(
    event_type: EventType, monkeypatch: pytest.MonkeyPatch, failure: type[Exception], expected: int
) -> None:
    client = limited_to(1)[1]
    client.raise_request_exception = False

    def fail(*_: object, **__: object) -> None:
        raise failure

    with monkeypatch.context() as failing:
        failing.setattr(publishing, "remember", fail)
        assert publish(client).status_code >= 500
    assert not Message.objects.exists()
    assert publish(client).status_code == expected


@pytest.mark.django_db(transaction=True)
def test_simultaneous_publishes_do_not_exceed_the_limit(event_type: EventType) -> None:
    publisher, _ = limited_to(5)
    clients = [client_of(publisher) for _ in range(8)]

    def ask(client: Client) -> list[int]:
        try:
            return [publish(client).status_code for _ in range(5)]
        finally:
            connection.close()

    with ThreadPoolExecutor(len(clients)) as threads:
        statuses = [status for some in threads.map(ask, clients) for status in some]
    assert (statuses.count(202), statuses.count(429)) == (5, 35)
    assert Message.objects.count() == 5
