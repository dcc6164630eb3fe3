"""Redis flushed, away, hung, refusing: nothing is lost or repeated, and no call waits for long."""

import json
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise

import pytest
from django.conf import settings
from redis import Redis

from benchmarks.command_process import command_process
from broker_project.stack.load.receiver import Receiver
from broker_project.stack.load.wait import wait_until
from broker_project.stack.supervisor import Child
from tests.support.faults.breakage import away, beat_going_on, flush_redis, frozen
from tests.support.faults.figures import Figures, Report, promised_pause
from tests.support.faults.load import AFTERWARDS, Load
from tests.support.faults.verdicts import Verdict
from tests.support.real_broker import Broker

AWAY = "Redis does not work"
pytestmark = [pytest.mark.behaviour("11.3", "11.9", "4.10", "4.11"), pytest.mark.pause(AWAY)]

PENDING = 1_000
LINES = 5_000
MAX_PUBLISH = 2.0
"""A call whose process finds out that Redis does not answer, on a busy machine; the others do not even ask."""


def assert_unharmed(seen: Figures) -> None:
    assert (seen.broken, seen.duplicated) == ({}, 0)


@pytest.mark.selected
@pytest.mark.case("redis-flushed")
def test_redis_is_flushed_while_a_thousand_deliveries_are_pending(load: Load, figures: Report) -> None:
    busy = [load.subscribe("busy-1"), load.subscribe("busy-2")]
    for endpoint in busy:
        endpoint.is_busy = True
    load.start()
    load.publish(PENDING // len(busy))
    assert load.pending() >= PENDING
    with load.fault():
        flush_redis(load.broker)
    load.wait_for(AFTERWARDS)
    for endpoint in busy:
        assert endpoint.accepted() == set()
        endpoint.is_busy = False
    assert_unharmed(figures())


@pytest.mark.parametrize(
    ("broken", "seconds"),
    [
        pytest.param(away, 60.0, marks=pytest.mark.case("redis-away-60s"), id="away"),
        pytest.param(frozen, 25.0, marks=pytest.mark.case("redis-hung"), id="hung"),
    ],
)
def test_redis_does_not_answer(
    load: Load, figures: Report, broken: Callable[[Child], AbstractContextManager[None]], seconds: float
) -> None:
    load.start()
    with beat_going_on(load.broker), load.fault(), broken(load.broker.stack.supervisor["redis"]):
        time.sleep(seconds)
    load.wait_for(AFTERWARDS)
    assert_unharmed(figures())
    assert_went_on(load)


def assert_went_on(load: Load) -> None:
    calls = load.calls()
    assert len(calls) > AFTERWARDS
    assert {call.status for call in calls} <= {200, 202}, "every call that lay within the fault was taken"
    assert max(call.seconds for call in calls) <= MAX_PUBLISH
    for endpoint in load.endpoints.values():
        last = max(one.at for one in endpoint.exchanges if one.at <= load.faults[-1].ended)
        assert load.faults[-1].ended - last <= promised_pause(AWAY), "it got requests until the end of the fault"


@pytest.mark.behaviour("11.9")
@pytest.mark.case("redis-away-5000-lines")
def test_thousands_of_lines_go_on_without_redis(load: Load, receiver: Receiver, verdict: Verdict) -> None:
    """How long it takes until all have had a request is a matter of CPU time, so it is only measured."""
    event_type = subscribe_many(load.broker, receiver.url("/many"))
    arrivals = [arrivals_after_publish(load.broker, event_type, receiver, 1)]
    with beat_going_on(load.broker), load.fault(), away(load.broker.stack.supervisor["redis"]):
        arrivals += [arrivals_after_publish(load.broker, event_type, receiver, number) for number in (2, 3)]
    seconds = [max(times) for times in arrivals]
    verdict.measured |= {"with_redis_seconds": round(seconds[0], 1), "without_seconds": round(max(seconds[1:]), 1)}
    deliveries = Counter(request.delivery_id for request in receiver.of("/many"))
    assert (len(deliveries), max(deliveries.values())) == (len(arrivals) * LINES, 1)
    pauses = [later - earlier for times in arrivals[1:] for earlier, later in pairwise([0.0, *sorted(times)])]
    verdict.measured["pause_seconds"] = round(max(pauses), 1)
    assert max(pauses) <= promised_pause(AWAY)


def arrivals_after_publish(broker: Broker, event_type: str, receiver: Receiver, times: int) -> list[float]:
    """Publish an event to all lines, the `times`th; return how many seconds later each had its request."""
    assert broker.publish(event_type).status_code == 202
    began = time.monotonic()
    wait_until(lambda: len(receiver.of("/many")) >= times * LINES)
    return [max(0.0, request.begun - began) for request in receiver.of("/many")[(times - 1) * LINES :]]


def subscribe_many(broker: Broker, endpoint: str) -> str:
    """Store subscribers of one event type, all with this endpoint; return its name. The API would take minutes."""
    names = [f"many-{number}" for number in range(LINES)]
    with command_process(broker.stack.environment, "benchmarks.databases.Configuration") as (there, _):
        there(
            "subscribe",
            names=names,
            event_types=["Many"] * LINES,
            endpoints=[endpoint] * LINES,
            kind="TOPIC",
            script="",
        )
    return "Many"


def be_a_replica(redis: Redis) -> None:
    redis.replicaof("127.0.0.1", "1")


def have_no_memory(redis: Redis) -> None:
    redis.config_set("maxmemory", "1")


def want_another_password(redis: Redis) -> None:
    redis.config_set("requirepass", "another")
    redis.client_kill_filter(_type="normal", skipme=True)


def hold_texts_for_queues(redis: Redis) -> None:
    for queue in settings.QUEUES:
        redis.set(queue, "a text")


ENVELOPE = {"content-type": "application/json", "content-encoding": "utf-8"}
PROPERTIES = {"delivery_tag": "x", "delivery_info": {"exchange": "broker", "routing_key": "topic"}}
RUBBISH = [
    b"\xff\xfe",
    b"{",
    b"[" * 10_000,
    b'["a list"]',
    b'{"no": "properties"}',
    b'{"properties": 7}',
    *(
        json.dumps({**ENVELOPE, "body": body, "headers": headers, "properties": {**PROPERTIES, **more}}).encode()
        for body, headers, more in (
            ("%%%", {}, {"body_encoding": "base64"}),
            ("{}", None, {"delivery_tag": []}),
            ("{}", {"task": "no.such.task"}, {}),
            ("[]", {"task": "delivery.chores"}, {}),
            ("{}", {"task": ["delivery.chores"]}, {}),
        )
    ),
]


def hold_rubbish(redis: Redis) -> None:
    for queue in settings.QUEUES:
        redis.lpush(queue, *RUBBISH)


def mend(redis: Redis) -> None:
    redis.replicaof("NO", "ONE")
    redis.config_set("maxmemory", "0")
    redis.config_set("requirepass", redis.connection_pool.connection_kwargs["password"])
    redis.delete(*settings.QUEUES)


REFUSING_SECONDS = 30.0
SPOIL_SECONDS = 0.5


@pytest.mark.behaviour("4.10")
@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(be_a_replica, marks=pytest.mark.case("redis-read-only")),
        pytest.param(have_no_memory, marks=pytest.mark.case("redis-out-of-memory")),
        pytest.param(want_another_password, marks=pytest.mark.case("redis-other-password")),
        pytest.param(hold_texts_for_queues, marks=pytest.mark.case("redis-wrong-types")),
        pytest.param(hold_rubbish, marks=pytest.mark.case("redis-rubbish")),
    ],
)
def test_redis_answers_with_errors(load: Load, figures: Report, spoil: Callable[[Redis], None]) -> None:
    load.start()
    workers = [child.pid for child in load.broker.workers()]
    with load.broker.redis() as redis:
        with load.fault():
            end = time.monotonic() + REFUSING_SECONDS
            while time.monotonic() < end:
                spoil(redis)
                time.sleep(SPOIL_SECONDS)  # it goes on being so for a while
        mend(redis)
    load.wait_for(AFTERWARDS)
    assert_unharmed(figures())
    assert_went_on(load)
    assert workers == [child.pid for child in load.broker.workers()], "none has ended"
