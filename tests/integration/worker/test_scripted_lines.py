"""Lines whose subscriptions have scripts: order, what arrives, what is held or deferred (contract 8.1, 8.3)."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from delivery.models import Attempt, Delivery, LineEvent
from delivery.operations import release
from delivery.statuses import DeliveryStatus
from delivery.worker.event_loop import EventLoop
from subscriptions import edit
from subscriptions.credentials.tokens import key_of
from subscriptions.models import Subscription
from subscriptions.scripting import process, runner
from tests.support import broker
from tests.support.broker import Worker
from tests.support.factories import event_type, signature, subscription

DELIVERED, HELD, PENDING = DeliveryStatus.DELIVERED, DeliveryStatus.HELD, DeliveryStatus.PENDING


@pytest.fixture
def wanted(receiver: Receiver, storage: None) -> Subscription:
    return subscription(endpoint=receiver.url("/a"), event_type=event_type(content_type="application/json"))


def write(one: Subscription, script: str, **fields: Any) -> None:
    """Give a subscription a script, as an edit does."""
    edit.change(Subscription.objects.filter(pk=one.pk), changes={"script": script, **fields})


def reasons(one: Subscription) -> list[str]:
    return [*Delivery.objects.filter(subscription=one).oldest_first().values_list("reason", flat=True)]


def wait_until_only_held() -> None:
    wait_until(lambda: not Delivery.objects.open().exclude(status=HELD).exists())


@pytest.mark.behaviour("8.1", "1.5")
def test_what_the_script_makes_arrives_signed(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    script = """
        $outmessage = {key: $inmessage.key, tag: $inheader['X-Tag'][0]};
        $outheader = {'X-Tag': 'new', 'X-More': 'more'};
        $param = '/' + $inmessage.key + '?notify=false';
    """
    write(wanted, script, endpoint="PATCH:" + receiver.url("/a"), headers={"X-More": "the subscription's"})
    broker.publish_bodies(wanted.event_type, b'{"key": "K 1"}', headers=[("X-Tag", "old"), ("X-Other", "kept")])
    broker.wait_until_done()
    (sent,) = receiver.log
    assert (sent.method, sent.path, sent.body) == ("PATCH", "/a/K%201?notify=false", b'{"key":"K 1","tag":"old"}')
    names = ("x-tag", "x-more", "x-other", "content-type")
    assert [sent.headers[name] for name in names] == ["new", "the subscription's", "kept", "application/json"]
    signed = signature(
        key_of(wanted.signing_secret),
        webhook_id=sent.headers["webhook-id"],
        timestamp=int(sent.headers["webhook-timestamp"]),
        body=sent.body,
    )
    assert sent.headers["webhook-signature"] == signed


@pytest.mark.behaviour("4.1", "8.1")
def test_scripts_keep_the_order_of_a_line(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    plain = subscription(wanted.subscriber, wanted.event_type, receiver.url("/b"))
    write(wanted, "$outmessage = 'script ' + $inmessage")
    bodies = broker.publish_numbered(wanted.event_type, 30)
    broker.wait_until_done()
    assert receiver.bodies("/a") == [b"script " + body for body in bodies]
    assert receiver.bodies("/b") == bodies
    assert [request.sequence for request in receiver.log] == [*range(1, 61)]
    assert broker.statuses(plain) == broker.statuses(wanted) == [DELIVERED] * 30


@pytest.mark.behaviour("8.3")
@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("throw new Error('odd')", "script failed: Error: odd"),
        ("while (1);", "script failed: it used more than 250 ms of CPU"),
        ("let s = 'x'; while (1) s += s", "script failed: it used more than 32 MiB of memory"),
        ("$outmessage = 'x'.repeat(2e6)", "script failed: RangeError: $outmessage is larger than 1 MiB"),
        ("$param = '/../b'", "script failed: $param must not step up the path with '..' or '.'."),
        ("$outheader = {Host: 'b'}", "script failed: The header Host is set by the broker or the connection itself"),
    ],
)
def test_a_failing_script_holds_its_delivery_and_the_line_goes_on(
    receiver: Receiver, worker: Worker, wanted: Subscription, what: str, reason: str
) -> None:
    write(wanted, f"if ($inmessage % 2) {{ {what} }}")
    broker.publish_numbered(wanted.event_type, 4)
    wait_until_only_held()
    assert broker.statuses(wanted) == [DELIVERED, HELD, DELIVERED, HELD]
    assert [(request.body, request.sequence) for request in receiver.log] == [(b"0", 1), (b"2", 2)]
    assert reasons(wanted)[1].startswith(reason)
    assert [*Delivery.objects.open().values_list("sequence", "attempts", "uncertain")] == [(None, 0, False)] * 2
    assert (Attempt.objects.count(), LineEvent.objects.count()) == (2, 0)


@pytest.mark.behaviour("8.3", "4.15")
def test_a_released_delivery_uses_the_new_script(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    write(wanted, "throw 1")
    broker.publish_numbered(wanted.event_type, 2)
    wait_until_only_held()
    write(wanted, "$outmessage = 'mended ' + $inmessage")
    release([delivery.pk for delivery in Delivery.objects.open()])
    broker.wait_until_done()
    assert receiver.bodies("/a") == [b"mended 0", b"mended 1"]
    assert [request.sequence for request in receiver.log] == [1, 2]


@pytest.mark.behaviour("8.3", "11.3")
def test_a_repeated_request_has_the_same_body(receiver: Receiver, wanted: Subscription) -> None:
    write(wanted, "$outmessage = [Math.random(), Date.now(), $inmessage]")
    receiver.on("/a", answer(500), answer(503), answer(200))
    broker.publish_numbered(wanted.event_type, 1)
    broker.crash_while_sending(broker.line_of(wanted.subscriber))
    broker.expire_lease(broker.line_of(wanted.subscriber))
    with broker.running_worker():
        broker.cut_pauses_until_done()
    (body, *_) = bodies = receiver.bodies("/a")
    assert (bodies, broker.statuses(wanted)) == ([body] * 3, [DELIVERED])
    chance, now, message = json.loads(body)
    assert (0 < chance < 1, message) == (True, 0)
    published_at = Delivery.objects.values_list("message__published_at", flat=True).get()
    assert now == pytest.approx(published_at.timestamp() * 1000, abs=1)
    assert [request.is_flagged for request in receiver.log] == [True] * 3


@pytest.mark.behaviour("4.10", "8.3")
def test_a_number_possibly_sent_outlives_a_failing_script(receiver: Receiver, wanted: Subscription) -> None:
    broker.publish_numbered(wanted.event_type, 2)
    broker.crash_while_sending(broker.line_of(wanted.subscriber))
    broker.expire_lease(broker.line_of(wanted.subscriber))
    write(wanted, "if ($inmessage == 0) throw 'odd'")
    with broker.running_worker():
        wait_until_only_held()
        assert [(request.body, request.sequence) for request in receiver.log] == [(b"1", 2)]
        (recorded,) = LineEvent.objects.values_list("kind", "sequence", "reason")
        assert recorded == ("NUMBER_UNCERTAIN", 1, "held; it may never have been received")
        write(wanted, "")
        release([delivery.pk for delivery in Delivery.objects.open()])
        broker.wait_until_done()
    last = receiver.log[-1]
    assert (last.body, last.sequence, last.is_flagged) == (b"0", 1, True)


@pytest.mark.behaviour("4.15")
def test_the_current_script_is_used(receiver: Receiver, worker: Worker, wanted: Subscription) -> None:
    write(wanted, "$outmessage = 'old ' + $inmessage")
    receiver.on("/a", answer(503), answer(200))
    broker.publish_numbered(wanted.event_type, 3)
    wait_until(lambda: receiver.log)
    write(wanted, "$outmessage = 'new ' + $inmessage")
    broker.wait_until_done()
    assert receiver.bodies("/a") == [b"old 0", b"new 0", b"new 1", b"new 2"]


def processes_of(event_loop: EventLoop) -> list[int]:
    """Return the processes that run a script now."""
    scripts = event_loop.lines.scripts
    return [process.pid for process in [*scripts.processes.values()] if process.job] if scripts else []


def hit(worker: Worker, number: signal.Signals) -> None:
    """Send a signal to a process that is running a script."""
    wait_until(lambda: processes_of(worker.event_loop))
    for pid in processes_of(worker.event_loop):
        os.kill(pid, number)


@pytest.mark.behaviour("8.3")
@pytest.mark.usefixtures("unhurried_cpu", "long_pauses")
@pytest.mark.parametrize(
    ("number", "seconds", "reason"),
    [
        (signal.SIGKILL, PATIENCE_SECONDS, "script lost: its process is gone"),
        (signal.SIGSTOP, 2.0, "script lost: it took longer than 2 s"),
    ],
)
def test_a_lost_script_is_deferred_and_run_again(
    receiver: Receiver,
    worker: Worker,
    wanted: Subscription,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    seconds: float,
    reason: str,
) -> None:
    write(wanted, "while (1);")
    with monkeypatch.context() as limited:
        limited.setattr(process, "TOTAL_SECONDS", seconds)
        broker.publish_numbered(wanted.event_type, 1)
        hit(worker, number)
        wait_until(lambda: Delivery.objects.open().filter(times_deferred=1).exists())
    assert (broker.statuses(wanted), reasons(wanted)) == ([PENDING], [reason])
    write(wanted, "$outmessage = 'again ' + $inmessage")
    broker.cut_pauses_until_done()
    assert [(request.body, request.sequence) for request in receiver.log] == [(b"again 0", 1)]


def test_a_worker_stops_while_scripts_run_and_nothing_is_marked(receiver: Receiver, wanted: Subscription) -> None:
    write(wanted, "while (1);")
    broker.publish_numbered(wanted.event_type, 5)
    with broker.running_worker() as worker:
        wait_until(lambda: processes_of(worker.event_loop))
        known = processes_of(worker.event_loop)
    assert not any(Path(f"/proc/{pid}").exists() for pid in known)
    assert broker.line_of(wanted.subscriber).lease_until is None
    assert set(broker.statuses(wanted)) <= {PENDING, HELD}
    assert (receiver.log, Attempt.objects.count()) == ([], 0)


@pytest.mark.behaviour("8.3")
def test_hostile_scripts_leave_other_lines_alone(
    receiver: Receiver, worker: Worker, wanted: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = [subscription() for _ in range(10)]
    for one in hostile:
        write(one, "while (1);")
        broker.publish_numbered(one.event_type, 3)
    broker.publish_numbered(wanted.event_type, 20)
    wait_until(lambda: len(receiver.bodies("/a")) == 20)
    held = Delivery.objects.open().filter(status=HELD).count()
    assert held < 30, "most of the hostile ones have not even had their turn"
    monkeypatch.setattr(runner, "MAX_WAITING_SECONDS", 0.0)  # a worker that stops does not wait for them all
