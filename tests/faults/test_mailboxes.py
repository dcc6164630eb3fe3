"""Mailboxes while clients misbehave and the broker breaks: each message has one holder and one end."""

import signal
from collections.abc import Collection

import pytest

from tests.support.faults.breakage import restarted, send
from tests.support.faults.load import AFTERWARDS
from tests.support.faults.mailbox_clients import acknowledge, give_back_some, late, many_times, never
from tests.support.faults.mailbox_figures import Handed, in_hand
from tests.support.faults.mailbox_load import LONG, Box
from tests.support.receiver import PATIENCE, wait_until

pytestmark = [pytest.mark.behaviour("9.2"), pytest.mark.behaviour("9.3")]

PROCESSES = 8
KILLS = 5

SWITCHES = 6
HELD = 10
LEFT = 10


def kill_whoever_has_some(box: Box, *, but: Collection[str]) -> list[Handed]:
    """Kill the process that has got a message last, `but` for what was lost before; return what is lost with it."""

    def had() -> list[Handed]:
        return [one for one in in_hand(box.records()) if one.receipt not in but]

    wait_until(had)
    victim = max(had() or box.handed(), key=lambda one: one.begun).client
    box.processes[victim].kill()
    box.processes[victim].wait()
    lost = [one for one in had() if one.client == victim]
    box.start_process(victim)
    return lost


@pytest.mark.case("mailbox-never-acknowledged")
def test_what_a_client_never_acknowledges_goes_to_others(box: Box) -> None:
    sloth = box.client(never, most=5)
    sloth.start()
    box.read_by(acknowledge)
    box.start()
    wait_until(lambda: any(one.client == sloth.name for one in box.handed()), PATIENCE)
    wait_until(lambda: any(one.redeliveries for one in box.handed()), PATIENCE)
    box.stop(sloth)
    seen = box.figures()
    assert seen.broken == {}
    assert seen.duplicated > 0


@pytest.mark.behaviour("9.4")
@pytest.mark.case("mailbox-acknowledged-late")
def test_what_is_acknowledged_late_counts_unless_somebody_else_has_it(box: Box) -> None:
    box.publishers[0].publish()
    sluggard = box.client(late, most=5)
    late(sluggard, sluggard.some_receipts())
    (had,), (done,) = box.handed(), box.said("ack")
    sluggard.start()
    box.read_by(acknowledge)
    box.start()
    wait_until(lambda: any(one.status == 409 for one in box.said("ack")), PATIENCE)
    box.stop(sluggard)
    assert box.figures().broken == {}
    assert (done.status, done.asked_at > had.until) == (200, True), "nobody else had it"
    assert {one.code for one in box.said("ack") if one.status == 409} <= {"stale_receipt", "ended"}


@pytest.mark.behaviour("9.4")
@pytest.mark.case("mailbox-acknowledged-twice")
def test_what_is_acknowledged_twenty_times_at_once_is_delivered_once(box: Box) -> None:
    box.hold_for(LONG)
    box.read_by(many_times, give_back_some)
    box.start()
    box.wait_for(AFTERWARDS)
    box.stop()
    assert box.figures().broken == {}
    assert {(one.status, one.code) for one in box.said("ack")} == {(200, "acknowledged")}
    assert {one.status for one in [*box.said("nack"), *box.said("extend")]} == {200}


@pytest.mark.behaviour("9.4")
@pytest.mark.case("mailbox-stale-receipts")
def test_a_stale_receipt_changes_nothing_for_whoever_has_the_message(box: Box) -> None:
    box.publishers[0].publish()
    first, second = box.client(never), box.client(never, wait=20)
    (stale,) = first.some_receipts()
    (newest,) = second.some_receipts()  # as soon as the time is over
    told = [result.status for word in ("ack", "nack", "extend") for result in first.say(word, [stale])]
    assert [result.status for result in second.say("ack", [newest])] == [200]
    box.stop()
    assert told == [409, 409, 409]
    assert box.figures().broken == {}


@pytest.mark.case("mailbox-consumers-killed")
def test_clients_are_killed_while_others_fetch(box: Box) -> None:
    for number in range(PROCESSES):
        box.start_process(f"process-{number + 1}")
    box.start()
    lost: dict[str, Handed] = {}
    for _ in range(KILLS):
        lost |= {one.receipt: one for one in kill_whoever_has_some(box, but=lost)}
    box.wait_for(AFTERWARDS)
    box.stop()
    assert box.figures().broken == {}
    assert lost
    last = {one.number: one.redeliveries for one in sorted(box.handed(), key=lambda one: one.redeliveries)}
    assert all(last[one.number] > one.redeliveries for one in lost.values())


AGED = """
    UPDATE delivery_open SET created_at = created_at - interval '5 days'
     WHERE subscription_id IN (SELECT id FROM subscriptions_subscription WHERE subscriber_id =
           (SELECT id FROM subscriptions_subscriber WHERE name = %(name)s))
     RETURNING id
"""


@pytest.mark.behaviour("9.4")
@pytest.mark.behaviour("11.3")
@pytest.mark.case("mailbox-postgresql-restarted")
def test_postgresql_is_restarted_between_fetch_and_acknowledgement(box: Box) -> None:
    box.hold_for(LONG)
    box.start()
    holder = box.client(never, most=HELD)
    held = holder.some_receipts()
    postgres = box.broker.stack.supervisor["postgres"]
    with restarted(postgres):
        send(signal.SIGQUIT, postgres)
    told = [result.status for result in holder.say("ack", held)]
    box.read_by(acknowledge)
    box.wait_for(AFTERWARDS)
    box.stop()
    assert told == [200] * HELD
    assert box.figures().broken == {}


@pytest.mark.behaviour("9.8")
@pytest.mark.case("mailbox-switched")
def test_a_subscription_is_switched_again_and_again_under_load(box: Box) -> None:
    (subscription,) = box.broker.get("subscriptions", subscriber=box.subscriber)["items"]
    box.read_by(acknowledge, give_back_some)
    box.start()
    for number in range(SWITCHES):
        box.broker.change(f"subscriptions/{subscription['id']}", delivery_mode="PULL" if number % 2 else "PUSH")
        box.wait_for(AFTERWARDS)
    box.stop()
    seen = box.figures()
    assert seen.broken == {}
    assert box.handed()
    assert box.endpoint.accepted()


@pytest.mark.behaviour("9.6")
@pytest.mark.case("mailbox-days-over")
def test_what_lies_there_for_four_days_expires_but_never_while_somebody_has_it(box: Box) -> None:
    box.hold_for(LONG)
    singly, _ = box.publishers
    for _ in range(HELD):
        singly.publish()
    holder = box.client(never, most=HELD)
    held = holder.some_receipts()
    for _ in range(LEFT):
        singly.publish()
    aged = box.broker.ask(AGED, name=box.subscriber)
    wait_until(lambda: box.look_for_dropped() or len(box.dropped) == LEFT, PATIENCE)  # type: ignore[func-returns-value]
    told = [result.status for result in holder.say("ack", held)]
    box.stop()
    assert len(aged) == HELD + LEFT
    assert box.dropped == {event.number for event in singly.published[HELD:]}
    assert told == [200] * HELD
    assert box.figures().broken == {}
