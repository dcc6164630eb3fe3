"""Clients that misbehave, and a broker that breaks under them: each message has one holder, is acknowledged once."""

import signal
import threading
from collections.abc import Sequence

import pytest

from tests.faults.breaking import away, flush_redis, restarted, send
from tests.faults.load import AFTERWARDS
from tests.faults.mailbox_clients import Client, acknowledge, give_back_some, late, many_times, never
from tests.faults.mailbox_load import Box
from tests.receiver import PATIENCE, wait_until

pytestmark = [pytest.mark.behaviour("9.2"), pytest.mark.behaviour("9.3")]

PROCESSES = 8
KILLS = 8
SWITCHES = 6
HELD = 10
LONG = 600
"""Seconds to hold messages for that are not to time out."""
LEFT = 10
AGED = """
    UPDATE delivery_open SET created_at = created_at - interval '5 days'
     WHERE subscription_id IN (SELECT id FROM subscriptions_subscription WHERE subscriber_id =
           (SELECT id FROM subscriptions_subscriber WHERE name = %(name)s))
     RETURNING id
"""


@pytest.mark.selected
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
    sluggard = box.client(late, most=5)
    sluggard.start()
    box.read_by(acknowledge)
    box.start()
    wait_until(lambda: any(one.status == 409 for one in box.said("ack")), PATIENCE)
    box.stop(sluggard)
    assert box.figures().broken == {}
    assert {one.code for one in box.said("ack") if one.status == 409} <= {"stale_receipt", "ended"}


@pytest.mark.behaviour("9.4")
@pytest.mark.case("mailbox-acknowledged-twice")
def test_what_is_acknowledged_twenty_times_at_once_is_delivered_once(box: Box) -> None:
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
    (stale,) = _receipts(first)
    (newest,) = _receipts(second)  # as soon as the time is over
    told = [result.status for word in ("ack", "nack", "extend") for result in first.say(word, [stale])]
    assert [result.status for result in second.say("ack", [newest])] == [200]
    box.stop()
    assert told == [409, 409, 409]
    assert box.figures().broken == {}


@pytest.mark.selected
@pytest.mark.case("mailbox-consumers-killed")
def test_clients_are_killed_while_others_fetch(box: Box) -> None:
    names = [f"process-{number + 1}" for number in range(PROCESSES)]
    for name in names:
        box.start_process(name)
    box.start()
    for _ in range(KILLS):
        before = len(box.handed())
        wait_until(lambda before=before: len(box.handed()) > before, PATIENCE)  # type: ignore[misc]
        victim = max(box.handed(), key=lambda one: one.begun).client
        box.processes[victim].kill()
        box.processes[victim].wait()
        box.start_process(victim)
    box.wait_for(AFTERWARDS)
    box.stop()
    assert box.figures().broken == {}


@pytest.mark.behaviour("9.4")
@pytest.mark.behaviour("11.3")
@pytest.mark.case("mailbox-postgresql-restarted")
def test_postgresql_is_restarted_between_fetch_and_acknowledgement(box: Box) -> None:
    box.hold_for(LONG)
    box.start()
    holder = box.client(never, most=HELD)
    held = _receipts(holder)
    postgres = box.broker.stack.supervisor["postgres"]
    with restarted(postgres):
        send(signal.SIGQUIT, postgres)
    told = [result.status for result in holder.say("ack", held)]
    box.read_by(acknowledge)
    box.wait_for(AFTERWARDS)
    box.stop()
    assert told == [200] * HELD
    assert box.figures().broken == {}


@pytest.mark.behaviour("11.3")
@pytest.mark.case("mailbox-web-killed")
def test_the_web_process_is_killed_while_clients_fetch_and_wait(box: Box) -> None:
    box.read_by(acknowledge, acknowledge, give_back_some)
    box.start()
    for _ in range(3):
        with away(box.broker.stack.supervisor["web"]):
            pass
        box.wait_for(AFTERWARDS)
    box.stop()
    assert box.figures().broken == {}


@pytest.mark.behaviour("9.1")
@pytest.mark.case("mailbox-redis-away")
def test_whoever_waits_gets_the_next_message_without_redis(box: Box) -> None:
    flush_redis(box.broker)
    with away(box.broker.stack.supervisor["redis"]):
        waiting = box.client(acknowledge, wait=20)
        got: list[Sequence[str]] = []
        poll = threading.Thread(target=lambda: got.append(_receipts_of_one_call(waiting)))
        poll.start()
        box.publishers[0].publish()
        poll.join(PATIENCE)
        waiting.say("ack", got[0])
    box.read_by(acknowledge)
    box.start()
    box.stop()
    assert len(got[0]) == 1
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
    held = _receipts(holder)
    for _ in range(LEFT):
        singly.publish()
    aged = box.broker.ask(AGED, name=box.subscriber)
    wait_until(lambda: box.look_for_expired() or len(box.expired) == LEFT, PATIENCE)  # type: ignore[func-returns-value]
    told = [result.status for result in holder.say("ack", held)]
    box.stop()
    assert len(aged) == HELD + LEFT
    assert box.expired == {event.number for event in singly.published[HELD:]}
    assert told == [200] * HELD
    assert box.figures().broken == {}


def _receipts(client: Client) -> list[str]:
    """Fetch until there is something."""
    found: list[str] = []
    wait_until(lambda: found.extend(_receipts_of_one_call(client)) or found, PATIENCE)  # type: ignore[func-returns-value]
    return found


def _receipts_of_one_call(client: Client) -> list[str]:
    return [message.receipt for message in client.fetch()]
