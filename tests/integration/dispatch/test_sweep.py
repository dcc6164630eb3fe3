"""The sweep finds lost wake-ups and due work, however much else waits."""

import asyncio
import base64
import datetime as dt
import json
from datetime import timedelta
from typing import Any, cast

import pytest
import redis
from django.db import connection
from django.db.models.expressions import Combinable
from django.db.models.functions import Now
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs

from broker_project.core.db import forget_connection, rows
from broker_project.stack.load.receiver import Receiver, answer, raw
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery import endpoint_probe
from delivery.dispatch import notify
from delivery.dispatch.claim import claim
from delivery.dispatch.sweep import DueLine, SweepMemory, begin_delayed
from delivery.limits import MAX_IN_FLIGHT
from delivery.maintenance.expiry import expire_overdue
from delivery.models import Delivery, Hold, Line
from delivery.statuses import DeliveryStatus
from delivery.worker import leases, process
from subscriptions.models import PausedBy, Subscription
from tests.support import broker, factories
from tests.support.broker import lines_with_due_work, lone_worker
from tests.support.database import execute
from tests.support.factories import subscription
from tests.support.query_plans import costly_statements, explained_statements

QUEUE = "topic"
WORKER = "w1"
LATER, EARLIER = Now() + timedelta(minutes=4), Now() - timedelta(seconds=1)

WAITING = 20_000
HOUR = 3_600.0


@pytest.fixture
def line(wanted: Subscription) -> Line:
    broker.publish_numbered(wanted.event_type, 2)
    return broker.line_of(wanted.subscriber)


@pytest.mark.behaviour("11.3")
def test_pending_work_is_found_without_hints_until_its_line_is_claimed(line: Line) -> None:
    notify.redis_client().flushdb()
    assert lines_with_due_work() == [line.pk]
    claim([line.pk], worker="w")
    assert lines_with_due_work() == []


def test_a_line_without_work_is_left_alone(wanted: Subscription) -> None:
    assert lines_with_due_work() == []


@pytest.mark.behaviour("11.3")
def test_an_abandoned_line_is_found_even_without_other_work(line: Line) -> None:
    broker.crash_while_sending(line)
    Delivery.objects.filter(status=DeliveryStatus.PENDING).delete()
    broker.expire_lease(line)
    assert lines_with_due_work() == [line.pk]


@pytest.mark.behaviour("1.7")
@pytest.mark.parametrize("whose", ["subscription", "subscriber"])
def test_inactive_work_is_left_alone(wanted: Subscription, line: Line, whose: str) -> None:
    broker.inactivate(wanted if whose == "subscription" else wanted.subscriber)
    assert lines_with_due_work() == []


def hold(line: Line, wanted: Subscription, until: Combinable) -> None:
    head = Delivery.objects.earliest("id")
    config_version = wanted.version + wanted.subscriber.version
    Hold.objects.update_or_create(
        delivery=head, line=line, defaults={"config_version": config_version, "due_at": until, "reason": "answered 503"}
    )


@pytest.mark.behaviour("4.8")
def test_a_held_line_is_left_alone_until_its_pause_is_over(wanted: Subscription, line: Line) -> None:
    hold(line, wanted, LATER)
    assert (lines_with_due_work(), claim([line.pk], worker="w")) == ([], [])
    hold(line, wanted, EARLIER)
    assert lines_with_due_work() == [line.pk]


@pytest.mark.behaviour("4.9")
def test_a_held_line_is_found_once_its_head_is_inactive_cancelled_or_changed(wanted: Subscription, line: Line) -> None:
    subscription(subscriber=wanted.subscriber, event_type=wanted.event_type)
    broker.publish_numbered(wanted.event_type, 1)
    hold(line, wanted, LATER)
    Subscription.objects.get(pk=wanted.pk).save()
    assert lines_with_due_work() == [line.pk]
    wanted.refresh_from_db()
    hold(line, wanted, LATER)
    assert lines_with_due_work() == []
    broker.inactivate(wanted)
    assert lines_with_due_work() == [line.pk]


@pytest.mark.behaviour("4.6")
def test_a_deferred_delivery_is_found_when_it_is_due_again(line: Line) -> None:
    Delivery.objects.update(waits_for="RETRY", due_at=LATER)
    assert lines_with_due_work() == []
    Delivery.objects.filter(pk=Delivery.objects.earliest("id").pk).update(waits_for="RETRY", due_at=EARLIER)
    assert lines_with_due_work() == [line.pk]


@pytest.mark.behaviour("5.9")
@pytest.mark.parametrize(("policy", "longest"), [({}, 300), ({"max_delay_seconds": 600.0}, 600), (None, 300)])
def test_a_clock_that_was_ahead_holds_no_line_for_hours(
    wanted: Subscription, line: Line, policy: dict[str, Any] | None, longest: int
) -> None:
    if policy is not None:
        Subscription.objects.filter(pk=wanted.pk).update(retry_policy=factories.retry_policy(**policy))
        wanted.refresh_from_db()
    for seconds, is_due in ((longest - 60, False), (longest + 60, True), (20 * 24 * 3600, True)):
        hold(line, wanted, Now() + timedelta(seconds=seconds))
        expected = [line.pk] if is_due else []
        assert (lines_with_due_work(), [one.line_id for one in claim([line.pk], worker="w")]) == (expected, expected)
        Line.objects.update(lease_until=None)


def tasks_sent() -> int:
    return int(notify.redis_client().llen(QUEUE))


def test_wakes_grow_a_task_instead_of_multiplying_it(storage: None) -> None:
    for first in range(0, 15, 5):
        assert notify.wake(QUEUE, [*range(first, first + 5)])
    assert notify.wake(QUEUE, [3, 4])
    assert tasks_sent() == 1
    assert sorted(notify.woken_lines(QUEUE, WORKER)) == [*range(15)]
    assert notify.woken_lines(QUEUE, WORKER) == []


def is_gone() -> bool:
    listening = notify.listening_workers()
    return listening is not None and WORKER not in listening


def test_the_worker_of_a_line_hears_of_new_work_until_it_disowns_it(storage: None) -> None:
    heard: list[tuple[str, list[int]]] = []
    listener = notify.HintListener(WORKER, lambda *hint: heard.append(hint))
    listener.start()
    wait_until(lambda: listener.is_connected)
    notify.wake(QUEUE, [1, 2])
    assert sorted(notify.woken_lines(QUEUE, WORKER)) == [1, 2]
    notify.disown(QUEUE, [2], WORKER)
    notify.wake(QUEUE, [1, 2])
    wait_until(lambda: heard)
    assert (heard, notify.woken_lines(QUEUE, WORKER), tasks_sent()) == ([(QUEUE, [1])], [2], 2)
    listener.stop()
    listener.join()
    wait_until(is_gone)  # a moment after its connection was closed, Redis would still count it as a listener
    notify.wake(QUEUE, [1])
    assert (notify.woken_lines(QUEUE, WORKER), tasks_sent()) == ([1], 3)  # its worker is gone


@pytest.mark.parametrize(
    ("woken", "first"),
    [
        (1, [1]),
        (16, [16]),
        (17, [16, 1]),
        (50, [16, 16, 16, 2]),
        (300, [38, 33, 29, 25]),
        (3_000, [256, 256, 256, 256]),
    ],
)
def test_a_task_takes_a_share_of_the_woken_lines_and_sends_another_for_the_rest(
    storage: None, woken: int, first: list[int]
) -> None:
    notify.wake(QUEUE, [*range(woken)])
    taken: list[list[int]] = []
    while lines := notify.woken_lines(QUEUE, WORKER):
        taken.append(lines)
        is_last = sum(map(len, taken)) == woken
        assert tasks_sent() == len(taken) + (not is_last)
    assert sorted(line_id for lines in taken for line_id in lines) == [*range(woken)]
    assert [len(lines) for lines in taken[: len(first)]] == first


@pytest.mark.behaviour("11.3")
def test_the_sweep_sends_a_task_for_lines_whose_task_was_lost(storage: None) -> None:
    notify.wake(QUEUE, [1])
    notify.redis_client().delete(QUEUE)
    notify.wake(QUEUE, [1])
    assert tasks_sent() == 0
    notify.wake_regardless(QUEUE, [1])
    assert (tasks_sent(), notify.woken_lines(QUEUE, WORKER)) == (1, [1])


@pytest.mark.behaviour("11.3")
def test_tasks_that_nobody_takes_do_not_pile_up(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "MAX_TASKS", 3)
    for line_id in range(10):
        assert notify.wake_regardless(QUEUE, [line_id])
    assert (tasks_sent(), sorted(notify.woken_lines(QUEUE, WORKER))) == (3, [*range(10)])


def test_a_failed_hint_is_logged_and_not_retried_soon(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    away = redis.Redis(port=9, retry=Retry(NoBackoff(), 0))
    monkeypatch.setattr(notify, "redis_client", lambda: away)
    monkeypatch.setattr(notify, "_idle", [])
    monkeypatch.setattr(notify, "breaker", notify._Breaker())
    assert (notify.disown(QUEUE, [1], WORKER), notify.breaker.lets_through()) == (False, False)
    assert notify.wake(QUEUE, [1]) is False


@pytest.mark.behaviour("11.3")
def test_redis_may_close_an_idle_connection_and_forget_scripts(storage: None) -> None:
    assert notify.wake(QUEUE, [1])
    kept = notify._idle[-1]
    kept.send_command("CLIENT", "ID")
    notify.redis_client().client_kill_filter(_id=str(kept.read_response()))
    notify.redis_client().script_flush()
    assert notify.wake(QUEUE, [2])
    assert sorted(notify.woken_lines(QUEUE, WORKER)) == [1, 2]


async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer a little later, after the woken lines have been taken from their set."""
    notify.woken_lines(QUEUE, WORKER)
    await asyncio.sleep(0.02)
    return await raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", keep=True)(reader, writer)


@pytest.mark.behaviour("4.14", "11.3")
def test_a_worker_that_stops_sends_the_next_turn_of_a_line_that_has_more(storage: None, receiver: Receiver) -> None:
    wanted = subscription(endpoint=receiver.url("/slow"))
    receiver.on("/slow", slowly)
    broker.publish_numbered(wanted.event_type, 200)
    sweeper = broker.lone_worker("sweeper")
    sweeper.event_loop.start()
    try:
        sweeper._sweep()
        sweeper._sweep()
        wait_until(lambda: receiver.log)
    finally:
        assert sweeper.event_loop.stop(20)
    tasks = map(json.loads, cast(list[bytes], notify.redis_client().lrange(QUEUE, 0, -1)))
    arguments = [json.loads(base64.b64decode(task["body"]))[0] for task in tasks]
    assert [[broker.line_of(wanted.subscriber).pk]] in arguments


@pytest.mark.behaviour("4.6")
def test_an_idle_line_sends_a_retry_when_it_is_due(
    storage: None, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "IDLE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(process, "SWEEP_SECONDS", 0.05)
    wanted = subscription(endpoint=receiver.url("/a"))
    receiver.on("/a", answer(500), answer())
    broker.publish_numbered(wanted.event_type, 1)
    worker = broker.lone_worker("worker")
    worker.start()
    try:
        broker.cut_pauses_until_done()
    finally:
        worker.stop()
    assert (len(receiver.log), broker.line_of(wanted.subscriber).epoch) == (2, 1)


OWN, FOREIGN = "queue.3", "topic"
OTHER = "another worker"
LINE_ID = 5


def sweeps_that_leave_it(
    memory: SweepMemory, queue: str, epochs: dict[float, int | None], *, hint_taken: bool = True, worker: str = OTHER
) -> list[float]:
    """Sweep at these times, when the line is due with an epoch or not at all; return when it is left to the process."""
    untaken = set() if hint_taken else {queue}
    due = {at: [] if epoch is None else [DueLine(LINE_ID, queue, epoch, worker)] for at, epoch in epochs.items()}
    return [at for at, lines in due.items() if memory.left_to_us(lines, untaken, at)]


def every_second(until: int, epoch: int = 1, since: int = 0) -> dict[float, int | None]:
    return dict.fromkeys(map(float, range(since, until)), epoch)


@pytest.mark.behaviour("6.2", "11.3")
@pytest.mark.parametrize(
    ("queue", "hint_taken", "epochs", "left_at"),
    [
        (OWN, True, {0: 1, 1: 1, 2: 2}, [1, 2]),
        (OWN, True, {0: 1, 1: None, 2: 1}, []),
        (OWN, False, {0: 1, 1: None, 2: 1}, [0, 2]),
        (FOREIGN, True, every_second(12), [10, 11]),
        (FOREIGN, False, every_second(12), [10, 11]),
        (FOREIGN, True, every_second(5) | every_second(17, epoch=2, since=5), [15, 16]),
        (FOREIGN, True, every_second(17) | {5: None}, [16]),
        (FOREIGN, True, {0: 1, 1: 1} | every_second(70, since=61), [68, 69]),
    ],
    ids=[
        "own, nobody came",
        "own, it was not due in between",
        "own, without Redis",
        "foreign",
        "foreign, without Redis",
        "foreign, claimed after 5 s",
        "foreign, not due after 5 s",
        "foreign, the database was away for a minute",
    ],
)
def test_foreign_lines_are_left_to_a_process_after_ten_seconds(
    queue: str, hint_taken: bool, epochs: dict[float, int | None], left_at: list[float]
) -> None:
    assert sweeps_that_leave_it(SweepMemory(WORKER, {OWN}), queue, epochs, hint_taken=hint_taken) == left_at


@pytest.mark.behaviour("6.2")
def test_a_line_taken_over_counts_as_own_until_another_worker_claims_it() -> None:
    memory = SweepMemory(WORKER, {OWN})
    assert sweeps_that_leave_it(memory, FOREIGN, every_second(11)) == [10]
    epochs: dict[float, int | None] = {30: None, 60: 2, 61: 2}
    assert sweeps_that_leave_it(memory, FOREIGN, epochs, worker=WORKER) == [61]
    assert sweeps_that_leave_it(memory, FOREIGN, every_second(75, epoch=3, since=62)) == [72, 73, 74]


@pytest.mark.behaviour("6.2")
def test_a_line_that_a_worker_of_the_same_name_had_is_foreign() -> None:
    assert sweeps_that_leave_it(SweepMemory(WORKER, {OWN}), FOREIGN, every_second(12), worker=WORKER) == [10, 11]


@pytest.mark.behaviour("6.2")
def test_a_cancelled_queue_is_foreign() -> None:
    queues = {OWN}
    memory = SweepMemory(WORKER, queues)
    assert sweeps_that_leave_it(memory, OWN, every_second(2)) == [1]
    queues.clear()
    assert sweeps_that_leave_it(memory, OWN, every_second(12, since=2)) == [10, 11]


WAIT = """
INSERT INTO delivery_open (message_id, line_id, subscription_id, status, size, waits_for, not_before, expires_at)
SELECT n, %s, %s, 'PENDING', 2, CASE n %% 2 WHEN 0 THEN 'START' ELSE 'TURN' END,
       CASE n %% 2 WHEN 0 THEN now() + interval '1 day' END, CASE WHEN n %% 4 < 2 THEN now() + interval '1 day' END
  FROM generate_series(1, %s) n
"""
"""Every other one is delayed, and of either kind every other one will expire."""
SUSPENDED = """
INSERT INTO subscriptions_subscription (subscriber_id, event_pattern, endpoint, headers, signing_secret, paused_since,
                                        header_filter_string, filter, filter_term, script, position, status,
                                        paused_by, probe_due_at)
SELECT %s, 'n' || n || '.*', 'http://127.0.0.1/', '', '', now(), '', '', '', '', 0,
       CASE n %% 2 WHEN 0 THEN 'ACTIVE' ELSE 'INACTIVE' END, 'POLICY',
       now() + CASE n %% 2 WHEN 0 THEN interval '1 day' ELSE interval '-1 day' END
  FROM generate_series(1, %s) n
"""
"""What is not active is overdue."""


def let_many_wait() -> None:
    other = factories.subscription()
    execute(WAIT, [broker.line_of(other.subscriber).pk, other.pk, WAITING])
    # What a vacuum makes of it: where the planner takes to bitmaps and sorts.
    execute("VACUUM delivery_open")


@pytest.mark.behaviour("5.6")
def test_only_due_probes_are_read(wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_bodies(wanted.event_type, b"0")
    execute(SUSPENDED, [factories.subscriber().pk, WAITING])
    execute("VACUUM subscriptions_subscription")
    ours = Subscription.objects.filter(pk=wanted.pk)
    ours.update(paused_since=Now(), paused_by=PausedBy.POLICY, probe_due_at=Now())
    forget_connection()  # and what it has planned for few

    with explained_statements(monkeypatch) as statements:
        assert rows(f"SELECT {endpoint_probe.ARE_DUE}") == [(True,)]
        assert broker.probe() == 1

    assert ours.get().half_open
    looks = [node for one in statements for node in one.nodes() if node.get("Index Name") == "subscription_probes"]
    assert [node["Shared Hit Blocks"] + node["Shared Read Blocks"] < 20 for node in looks] == [True, True]


@pytest.mark.behaviour("2.10", "2.13", "11.4")
def test_only_due_deliveries_are_read(wanted: Subscription, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.publish_bodies(wanted.event_type, b"0", ttl=HOUR)
    broker.publish_bodies(wanted.event_type, b"1", not_before=dt.datetime(2100, 1, 1, tzinfo=dt.UTC))
    let_many_wait()
    past = Now() - dt.timedelta(milliseconds=1)
    ours = Delivery.objects.filter(subscription=wanted)
    ours.filter(expires_at__isnull=False).update(expires_at=past)
    ours.filter(not_before__isnull=False).update(not_before=past)

    with explained_statements(monkeypatch) as statements:
        assert (expire_overdue(), begin_delayed()) == (1, 1)

    assert broker.statuses(wanted) == ["EXPIRED", "PENDING"]
    assert costly_statements(statements, max_rows=100, max_wasted=10) == []
    assert max(one.blocks_read for one in statements) < 1_000


@pytest.mark.behaviour("11.3")
def test_a_name_is_a_workers_own_as_long_as_it_lives(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "NAME_SECONDS", 1.0)
    with capture_logs() as logged:
        first, second = lone_worker("twin"), lone_worker("twin")
        try:
            first.start()
            assert first.wait_until_started()
            close_idle_connections()
            second.start()
            assert second.wait_until_started()
        finally:
            first.stop()
            second.stop()
    said = [one["event"] for one in logged if one["event"] in {"worker.started", "worker.name_taken"}]
    assert said == ["worker.started", "worker.name_taken"]


@pytest.mark.behaviour("11.3")
@pytest.mark.parametrize(("untaken", "number"), [({"topic"}, 5_000), (set(), 0)])
def test_without_redis_a_worker_runs_as_many_lines_as_it_has_places_for(
    monkeypatch: pytest.MonkeyPatch, untaken: set[str], number: int
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(process, "take_turn", lambda _queue, line_ids, *_: taken.extend(line_ids))
    worker = lone_worker("w")
    worker._run_left([DueLine(line_id, "topic", 0, "") for line_id in range(5_000)], untaken)
    assert len(taken) == min(number, MAX_IN_FLIGHT)


@pytest.mark.behaviour("11.3")
def test_a_name_is_taken_again_after_the_database_was_away(storage: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "NAME_SECONDS", 1.0)
    first, second = lone_worker("twin"), lone_worker("twin")
    try:
        first.start()
        assert first.wait_until_started()
        ((before,),) = name_holders()
        execute("SELECT pg_terminate_backend(%s)", [before])
        wait_until(lambda: name_holders() not in ([], [(before,)]))
        with capture_logs() as logged:
            second.start()
            assert second.wait_until_started()
    finally:
        first.stop()
        second.stop()
    assert [one["event"] for one in logged if one["event"].startswith("worker.")][:1] == ["worker.name_taken"]


def name_holders() -> list[tuple[int]]:
    """Return the server process that has the lock of the name `twin`."""
    return execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND objid::bigint = hashtext('twin')::bigint & 4294967295"
    )


def close_idle_connections() -> None:
    """Let the pool close what nobody uses, as it does after some minutes."""
    pool = cast(Any, connection).pool
    for lent in [pool.getconn() for _ in range(pool.get_stats()["pool_available"])]:
        lent.close()
        pool.putconn(lent)
