"""A broker that breaks or is changed under a mailbox's clients: each message has one holder, is acknowledged once."""

import signal

import pytest

from tests.faults.breaking import restarted, send
from tests.faults.load import AFTERWARDS
from tests.faults.mailbox_load import Box
from tests.faults.mailbox_loading import LONG
from tests.faults.mailbox_manners import acknowledge, give_back_some, never
from tests.receiver import PATIENCE, wait_until

pytestmark = [pytest.mark.behaviour("9.2"), pytest.mark.behaviour("9.3")]

SWITCHES = 6
HELD = 10
LEFT = 10
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
