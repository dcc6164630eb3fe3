"""SYNC: many that wait at once, and what ends their waiting (behaviour 7.2)."""

import itertools
import threading
from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from delivery.models import Attempt, Delivery
from delivery.sync import caller
from delivery.sync.caller import MOST_WAITING, MOST_WAITING_FOR_ONE
from subscriptions.models import EventKind, EventType, Subscription
from tests import factories
from tests.asking import PATH, in_threads, recorded, said_of
from tests.publishing import EVENT, problem, publish
from tests.receiver import PATIENCE, Receiver, answer, hang, wait_until

pytestmark = pytest.mark.usefixtures("calls")


@pytest.fixture(autouse=True)
def event_type(calls: None) -> EventType:
    return factories.event_type(EVENT, EventKind.SYNC)


@pytest.mark.behaviour("7.2")
def test_calls_that_wait_hold_no_connection_and_no_more_than_64_of_them_wait(
    client: Client, event_type: EventType, receiver: Receiver, settings: Any
) -> None:
    names = [str(number) for number in range(MOST_WAITING // MOST_WAITING_FOR_ONE)]
    for name in [*names, "another"]:
        factories.subscription(event_type=event_type, endpoint=receiver.url(PATH), header_filter_string=name)
    topic = factories.event_type()
    factories.subscription(event_type=topic)
    gate = receiver.gate(PATH, answer(200, b"at last"))
    receiver.on(PATH, gate)
    settings.SYNC_SECONDS = PATIENCE
    calls: list[Any] = []
    turns = itertools.cycle(names)
    act = lambda: publish(client, Filter_String=next(turns))  # noqa: E731 - what each thread does
    waiting = threading.Thread(target=lambda: calls.extend(in_threads(MOST_WAITING, act)))
    waiting.start()
    try:
        wait_until(lambda: len(receiver.of(PATH)) == MOST_WAITING)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            (connections,) = cursor.fetchone() or (0,)
        assert connections <= 25, "not one for each"
        assert publish(client, event=topic.name).status_code == 202
        refused = publish(client, Filter_String="another")
        assert (problem(refused), refused["Retry-After"]) == ((503, "too_many_calls"), "1")
        assert refused.json()["detail"].startswith(f"{MOST_WAITING} calls are waiting for their endpoints")
        assert (refused["Broker-Outcome"], "Broker-Message-Id" in refused) == ("too_many_calls", False)
    finally:
        gate.open()
        waiting.join()
    assert {said_of(one) for one in calls} == {(200, b"at last", "answered")}
    assert len(receiver.of(PATH)) == MOST_WAITING == Attempt.objects.count()
    receiver.on(PATH, answer(200))
    assert publish(client, Filter_String="another")["Broker-Outcome"] == "answered"


@pytest.mark.behaviour("7.2")
def test_an_endpoint_that_hangs_leaves_the_others_their_places(
    client: Client, asked: Subscription, receiver: Receiver, settings: Any
) -> None:
    settings.SYNC_SECONDS = PATIENCE
    other = factories.event_type("Other.Question", EventKind.SYNC)
    factories.subscription(event_type=other, endpoint=receiver.url("/other"))
    gate = receiver.gate(PATH, answer(200, b"at last"))
    receiver.on(PATH, gate)
    calls: list[Any] = []
    waiting = threading.Thread(target=in_threads, args=(MOST_WAITING, lambda: calls.append(publish(client))))
    waiting.start()
    try:
        wait_until(lambda: len(receiver.of(PATH)) == MOST_WAITING_FOR_ONE == MOST_WAITING - len(calls))
        assert said_of(publish(client, event=other.name)) == (200, b"", "answered")
    finally:
        gate.open()
        waiting.join()
    outcomes = Counter((one.status_code, one["Broker-Outcome"]) for one in calls)
    assert outcomes == {(200, "answered"): 16, (503, "too_many_calls"): 48}
    (detail,) = {one.json()["detail"] for one in calls if one.status_code == 503}
    assert detail.startswith(f"{MOST_WAITING_FOR_ONE} calls are waiting for subscription {asked.pk} ")


@pytest.mark.behaviour("7.2")
def test_one_call_that_cannot_be_made_or_a_loop_that_fails_ends_nothing_else(
    client: Client, asked: Subscription, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert publish(client).status_code == 200
    (running,) = caller._callers.values()
    nothing = running.ask(object(), before_waiting=list)  # type: ignore[arg-type]
    assert str(nothing.result) == "the request could not be made"
    gate = receiver.gate(PATH, answer(200))
    broken: list[Any] = []
    thread = threading.Thread(target=lambda: broken.extend(in_threads(1, lambda: publish(client))))
    thread.start()
    wait_until(lambda: len(receiver.of(PATH)) == 2)
    monkeypatch.setattr(running.loop._scripts, "finished", lambda: 1 / 0)
    running.loop._client.interrupt()
    thread.join()
    gate.open()
    assert problem(broken[0]) == (502, "endpoint_unreachable")
    assert publish(client).status_code == 200
    assert [status for _, status, _, _ in recorded()] == ["DELIVERED", "FAILED", "DELIVERED"]


@pytest.mark.behaviour("7.2")
def test_a_process_that_stops_waits_for_no_endpoint(client: Client, asked: Subscription, receiver: Receiver) -> None:
    receiver.on(PATH, hang)
    came: list[Any] = []
    thread = threading.Thread(target=lambda: came.extend(in_threads(1, lambda: publish(client))))
    thread.start()
    wait_until(lambda: len(receiver.of(PATH)) == 1)
    (running,) = caller._callers.values()
    running.loop.stop()
    thread.join()
    assert problem(came[0]) == (502, "endpoint_unreachable")
    assert (Delivery.objects.get().status, Delivery.objects.get().uncertain) == ("FAILED", True)
    receiver.on(PATH, answer(200))
    assert publish(client).status_code == 200, "asked by a new one"
