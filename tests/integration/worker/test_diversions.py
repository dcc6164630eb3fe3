"""Diversions: an endpoint that hangs costs its subscriber's main line one time-out (contract 5.10)."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from broker_project.stack.load.receiver import Receiver, answer, hang
from broker_project.stack.load.wait import wait_until
from delivery.dispatch.claim import claim
from delivery.models import Attempt, Delivery, Lane, Line, LineEvent
from delivery.operations import cancel_deliveries_of
from delivery.pause import pause, resume
from delivery.status.line_status import Diversion, LineState, diversions_of, line_statuses
from delivery.statuses import DeliveryStatus
from subscriptions.models import RetryPolicy, Subscriber, Subscription
from subscriptions.models.subscribers import Processing
from subscriptions.retry_policies import ACTIONS, OnExhausted
from tests.support import broker
from tests.support.factories import event_type, retry_policy, subscriber, subscription

DELIVERED, PENDING, FAILED = DeliveryStatus.DELIVERED, DeliveryStatus.PENDING, DeliveryStatus.FAILED
RETRY_ALL: dict[str, Any] = dict.fromkeys(ACTIONS, "RETRY_LANE") | {"jitter": 0.0}
TEN_MINUTES: dict[str, Any] = {"initial_delay_seconds": 600.0, "max_delay_seconds": 600.0}


@pytest.fixture
def hanging(receiver: Receiver, storage: None) -> Subscription:
    """Return a subscription under a policy like Workfront's, but with one retry, whose endpoint hangs."""
    receiver.on("/a", hang)
    policy = retry_policy(**RETRY_ALL, **TEN_MINUTES, max_retries=1, on_exhausted=OnExhausted.FAIL)
    return subscription(endpoint=receiver.url("/a"), retry_policy=policy, timeout_seconds=1)


def wait_until_diverted(hanging: Subscription, times: int = 1) -> None:
    """Wait until the subscription is diverted, for the `times`-th time."""
    diversions = LineEvent.objects.filter(kind="DIVERTED")
    wait_until(lambda: diversions.count() == times and is_diverted(hanging), saying=LineEvent.objects.values)


def is_diverted(hanging: Subscription) -> bool:
    return Subscription.objects.filter(pk=hanging.pk, diverted_since__isnull=False).exists()


def in_retry_line(hanging: Subscription) -> list[int]:
    """Return the numbers of what waits in the retry line, the oldest delivery first."""
    waiting = Delivery.objects.open().filter(line=broker.retry_line_of(hanging.subscriber)).oldest_first()
    return [sequence or 0 for sequence in waiting.values_list("sequence", flat=True)]


def history() -> list[str]:
    return [*LineEvent.objects.order_by("id").values_list("kind", flat=True)]


def end_pauses() -> None:
    """Let what waits in retry lines be due."""
    Delivery.objects.open().filter(due_at__isnull=False).update(due_at=Now())
    Line.objects.filter(lane=Lane.RETRY, due_at__isnull=False).update(due_at=Now())


@pytest.mark.behaviour("5.3", "5.10")
def test_a_hanging_endpoint_costs_the_main_line_one_time_out(receiver: Receiver, hanging: Subscription) -> None:
    other = subscription(hanging.subscriber, event_type(), receiver.url("/b"))
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 4)
        wait_until_diverted(hanging)
        broker.publish_numbered(hanging.event_type, 2, first=4)
        broker.publish_numbered(other.event_type, 20)
        wait_until(lambda: len(receiver.of("/b")) == 20)
    assert receiver.bodies("/a") == [b"0"]
    assert broker.statuses(hanging) == [PENDING] * 6
    assert in_retry_line(hanging) == [1]
    waiting = Delivery.objects.open().exclude(sequence=1)
    assert {*waiting.values_list("line__lane", "attempts", "waits_for", "sequence")} == {("main", 0, "TURN", None)}
    assert [one.sequence for one in receiver.of("/b")] == [*range(2, 22)]


@pytest.mark.behaviour("5.10")
@pytest.mark.parametrize("status", [200, pytest.param(404, marks=pytest.mark.lengthy), 500, 503])
def test_any_answer_ends_the_diversion_in_order(receiver: Receiver, hanging: Subscription, status: int) -> None:
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 3)
        wait_until_diverted(hanging)
        broker.publish_numbered(hanging.event_type, 3, first=3)
        receiver.on("/a", answer(status), answer())
        end_pauses()
        wait_until(lambda: broker.statuses(hanging)[1:] == [DELIVERED] * 5)
        assert not is_diverted(hanging)
        assert broker.statuses(hanging)[0] == (DELIVERED if status == 200 else FAILED)
    assert receiver.bodies("/a") == [b"0", b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [one.sequence for one in receiver.of("/a")] == [1, 1, 2, 3, 4, 5, 6]
    assert history() == ["DIVERTED", "DIVERSION_ENDED"]


@pytest.mark.behaviour("5.10")
def test_a_probe_that_hangs_too_waits_for_the_policys_pause(receiver: Receiver, hanging: Subscription) -> None:
    RetryPolicy.objects.filter(is_preset=False).update(max_retries=12)
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 3)
        wait_until_diverted(hanging)
        end_pauses()
        wait_until(lambda: Attempt.objects.count() == 2)
    probe = Delivery.objects.open().get(line=broker.retry_line_of(hanging.subscriber))
    assert probe.due_at
    assert timedelta(minutes=9) < probe.due_at - timezone.now() <= timedelta(minutes=10)
    assert receiver.bodies("/a") == [b"0", b"0"]
    assert history() == ["DIVERTED"]


@pytest.mark.behaviour("4.10", "5.10")
def test_the_next_is_the_probe_when_the_retries_of_the_first_are_used_up(
    receiver: Receiver, hanging: Subscription
) -> None:
    other = subscription(hanging.subscriber, event_type(), receiver.url("/b"))
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 3)
        wait_until_diverted(hanging)
        broker.publish_numbered(other.event_type, 2)
        wait_until(lambda: len(receiver.of("/b")) == 2)
        end_pauses()
        wait_until(lambda: receiver.bodies("/a") == [b"0", b"0", b"1"])
        wait_until(lambda: in_retry_line(hanging) == [4] and Attempt.objects.count() == 5)
        assert broker.statuses(hanging) == [FAILED, PENDING, PENDING]
        assert is_diverted(hanging)
        receiver.on("/a", answer())
        end_pauses()
        broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"1", b"1", b"2"]
    assert [one.sequence for one in receiver.of("/a")] == [1, 1, 4, 4, 5]
    assert [one.sequence for one in receiver.of("/b")] == [2, 3]
    assert history() == ["DIVERTED", "NUMBER_UNCERTAIN", "DIVERSION_ENDED"]


@pytest.mark.behaviour("5.10")
def test_the_endpoint_is_tried_at_least_every_first_pause(receiver: Receiver, hanging: Subscription) -> None:
    RetryPolicy.objects.filter(is_preset=False).update(schedule=[600.0, 86_400.0], max_delay_seconds=86_400.0)
    RetryPolicy.objects.filter(is_preset=False).update(max_retries=12)
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 1)
        wait_until_diverted(hanging)
        end_pauses()
        wait_until(lambda: Attempt.objects.count() == 2)
        assert (in_retry_line(hanging), is_diverted(hanging), broker.lines_with_due_work()) == ([1], True, [])
        broker.publish_numbered(hanging.event_type, 2, first=1)
        wait_until(lambda: Attempt.objects.count() == 3)
    assert receiver.bodies("/a") == [b"0", b"0", b"1"]
    assert in_retry_line(hanging) == [1, 2]


@pytest.mark.behaviour("5.10")
def test_without_anything_to_try_the_diversion_ends(receiver: Receiver, hanging: Subscription) -> None:
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 2)
        wait_until_diverted(hanging)
        cancel_deliveries_of(hanging.pk, reason="unwanted")
        wait_until(lambda: not is_diverted(hanging))
        receiver.on("/a", answer())
        broker.publish_numbered(hanging.event_type, 1, first=2)
        broker.wait_until_done()
    assert receiver.bodies("/a") == [b"0", b"2"]


def changed(hanging: Subscription) -> None:
    Subscription.objects.filter(pk=hanging.pk).update(position=7)


def policy_changed(hanging: Subscription) -> None:
    RetryPolicy.objects.filter(is_preset=False).update(factor=3.0)


def paused_and_resumed(hanging: Subscription) -> None:
    pause([hanging.pk], reason="moving house")
    resume([hanging.pk])


def inactivated_and_activated(hanging: Subscription) -> None:
    broker.inactivate(hanging)
    broker.activate(hanging)


@pytest.mark.behaviour("5.10")
@pytest.mark.parametrize("change", [changed, policy_changed, paused_and_resumed, inactivated_and_activated])
def test_a_change_ends_the_diversion(receiver: Receiver, hanging: Subscription, change: Any) -> None:
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 3)
        wait_until_diverted(hanging)
        receiver.on("/a", answer())
        change(hanging)
        wait_until(lambda: broker.statuses(hanging) == [PENDING, DELIVERED, DELIVERED])
    assert receiver.bodies("/a") == [b"0", b"1", b"2"]
    assert [kind for kind in history() if "DIVER" in kind] == ["DIVERTED", "DIVERSION_ENDED"]


@pytest.mark.behaviour("5.10")
def test_an_older_request_diverts_nothing_after_a_change(receiver: Receiver, hanging: Subscription) -> None:
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 2)
        wait_until(lambda: receiver.bodies("/a") == [b"0"])
        receiver.on("/a", answer())
        changed(hanging)
        wait_until(lambda: broker.statuses(hanging) == [PENDING, DELIVERED])
    assert receiver.bodies("/a") == [b"0", b"1"]
    assert history() == []


@pytest.mark.behaviour("5.10")
def test_a_refused_connection_diverts_nothing(receiver: Receiver, hanging: Subscription) -> None:
    receiver.close_port()
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 3)
        wait_until(lambda: in_retry_line(hanging) == [1, 2, 3])
    assert not is_diverted(hanging)


@pytest.mark.behaviour("5.10")
@pytest.mark.parametrize("policy", [None, {"on_no_answer": "HOLD"}, {"on_no_answer": "DEFER"}])
def test_other_policies_divert_nothing(receiver: Receiver, hanging: Subscription, policy: dict[str, str]) -> None:
    if policy:
        RetryPolicy.objects.filter(is_preset=False).update(**policy)
    else:
        Subscription.objects.update(retry_policy=None)
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 1)
        wait_until(lambda: Attempt.objects.count() == 1)
    assert (is_diverted(hanging), in_retry_line(hanging)) == (False, [])


@pytest.mark.behaviour("5.10")
@pytest.mark.parametrize(
    "fields",
    [
        {"processing": Processing.CONCURRENT, "concurrency": 3},
        {"processing": Processing.KEYED, "concurrency": 3, "ordering_key": "$$->>'Body'"},
    ],
    ids=["concurrent", "keyed"],
)
def test_a_line_of_several_places_times_out_once_in_each(
    receiver: Receiver, hanging: Subscription, fields: dict[str, Any]
) -> None:
    several = subscriber(**fields)
    policy = hanging.retry_policy
    slow = subscription(several, event_type(), receiver.url("/a"), retry_policy=policy, timeout_seconds=1)
    with broker.running_worker():
        broker.publish_numbered(slow.event_type, 9)
        wait_until_diverted(slow)
        wait_until(lambda: Attempt.objects.count() == 3)
        receiver.on("/a", answer())
        end_pauses()
        broker.wait_until_done()
    assert len(receiver.of("/a")) == 12
    assert sorted(receiver.bodies("/a")[:3]) == [b"0", b"1", b"2"]
    assert sorted(receiver.bodies("/a")[6:]) == [b"%d" % number for number in range(3, 9)]


@pytest.mark.behaviour("5.10")
def test_what_was_held_before_waits_too(receiver: Receiver, hanging: Subscription) -> None:
    RetryPolicy.objects.filter(is_preset=False).update(on_unavailable="HOLD")
    receiver.on("/a", answer(503), hang)
    fields = {"processing": Processing.CONCURRENT, "concurrency": 2}
    Subscriber.objects.filter(pk=hanging.subscriber_id).update(**fields)
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 3)
        wait_until_diverted(hanging)
        wait_until(lambda: not broker.holds_of(hanging.subscriber).exists())
        held = Delivery.objects.open().filter(message__body=receiver.bodies("/a")[0])
        assert held.values_list("line__lane", "attempts").get() == ("main", 1)
        assert len(receiver.of("/a")) == 2
        receiver.on("/a", answer())
        end_pauses()
        broker.wait_until_done()
    assert sorted(receiver.bodies("/a")) == [b"0", b"0", b"1", b"1", b"2"]


@pytest.mark.behaviour("4.11", "5.10")
def test_a_probe_is_repeated_flagged_after_its_worker_vanished(receiver: Receiver, hanging: Subscription) -> None:
    with broker.running_worker():
        broker.publish_numbered(hanging.event_type, 3)
        wait_until_diverted(hanging)
    end_pauses()
    retry_line = broker.retry_line_of(hanging.subscriber)
    _, probe, number = broker.crash_while_sending(retry_line)
    assert (number, Delivery.objects.get(pk=probe.id).line_id) == (1, retry_line.pk)
    broker.expire_lease(retry_line)
    receiver.on("/a", answer())
    broker.run_worker_until_done()
    assert receiver.bodies("/a") == [b"0", b"0", b"1", b"2"]
    assert [one.is_flagged for one in receiver.of("/a")] == [False, True, False, False]
    assert history() == ["DIVERTED", "DIVERSION_ENDED"]


@pytest.mark.behaviour("5.10")
def test_probes_are_given_with_the_claim_of_the_main_line(hanging: Subscription) -> None:
    Subscription.objects.filter(pk=hanging.pk).update(diverted_since=Now())
    broker.publish_numbered(hanging.event_type, 2)
    main = broker.line_of(hanging.subscriber)
    Line.objects.filter(pk=main.pk).update(last_sequence=F("last_sequence") + 7)
    assert broker.lines_with_due_work() == [main.pk]
    (claimed,) = claim([main.pk], worker="one")
    assert (claimed.last_sequence, in_retry_line(hanging), broker.outgoing_of(claimed)) == (8, [8], [])
    probe = Delivery.objects.open().get(sequence=8)
    assert (probe.attempts, probe.unreceived, probe.waits_for) == (0, True, "RETRY")
    Line.objects.filter(pk=main.pk).update(lease_until=None)
    assert broker.lines_with_due_work() == [broker.retry_line_of(hanging.subscriber).pk]


@pytest.mark.behaviour("5.10", "11.7")
def test_what_has_expired_and_not_ended_yet_is_no_probe(hanging: Subscription) -> None:
    Subscription.objects.filter(pk=hanging.pk).update(diverted_since=Now())
    broker.publish_numbered(hanging.event_type, 3)
    main, retry = broker.line_of(hanging.subscriber), broker.retry_line_of(hanging.subscriber)
    tried, waiting, live = Delivery.objects.oldest_first()
    Delivery.objects.filter(pk__in=[tried.pk, waiting.pk]).update(expires_at=Now())
    Delivery.objects.filter(pk=tried.pk).update(line=retry, waits_for="RETRY", due_at=Now(), attempts=1)
    assert main.pk in broker.lines_with_due_work()
    claim([main.pk], worker="one")
    assert [*Delivery.objects.filter(line=retry).oldest_first()] == [tried, live]


@pytest.mark.behaviour("4.10", "5.10")
def test_a_probe_that_was_not_sent_is_first_again_with_its_number(receiver: Receiver, hanging: Subscription) -> None:
    receiver.on("/a", answer())
    other = subscription(hanging.subscriber, event_type(), receiver.url("/b"))
    Subscription.objects.filter(pk=hanging.pk).update(diverted_since=Now())
    broker.publish_numbered(hanging.event_type, 3)
    main, retry = broker.line_of(hanging.subscriber), broker.retry_line_of(hanging.subscriber)
    claim([main.pk], worker="one")
    Line.objects.filter(pk=main.pk).update(lease_until=None)
    assert in_retry_line(hanging) == [1]
    claim([retry.pk], worker="one")  # whoever has the line does not send it yet
    broker.publish_numbered(other.event_type, 2)
    with broker.running_worker():
        wait_until(lambda: len(receiver.of("/b")) == 2)
        changed(hanging)
        wait_until(lambda: len(receiver.of("/a")) == 3)
    assert in_retry_line(hanging) == []
    assert [(one.body, one.sequence) for one in receiver.of("/a")] == [(b"0", 1), (b"1", 4), (b"2", 5)]
    assert [one.sequence for one in receiver.of("/b")] == [2, 3]


@pytest.mark.behaviour("5.10")
def test_what_is_diverted_is_shown(hanging: Subscription) -> None:
    assert diversions_of(hanging.subscriber_id) == []
    since = timezone.now()
    Subscription.objects.filter(pk=hanging.pk).update(diverted_since=since)
    broker.publish_numbered(hanging.event_type, 2)
    main, retry = broker.line_of(hanging.subscriber), broker.retry_line_of(hanging.subscriber)
    assert diversions_of(hanging.subscriber_id) == [Diversion(hanging.pk, since, None)]
    Delivery.objects.filter(pk=min(Delivery.objects.values_list("pk", flat=True))).update(
        line=retry, waits_for="RETRY", due_at=since + timedelta(minutes=5)
    )
    assert diversions_of(hanging.subscriber_id) == [Diversion(hanging.pk, since, since + timedelta(minutes=5))]
    found = line_statuses([main.pk, retry.pk])
    assert [found[line.pk].state for line in (main, retry)] == [LineState.DIVERTED, LineState.DEFERRED]
    assert found[main.pk].waiting == 1
