"""Mailboxes while clients misbehave and the broker breaks: each message has one holder and one end."""

import contextlib
import signal
import threading
import time
from collections.abc import Collection, Iterator, Sequence

import psycopg
import pytest

from broker_client import Mailbox
from broker_project.stack.load.wait import PATIENCE_SECONDS, wait_until
from tests.support.faults.breakage import away, flush_redis, frozen, restarted, send
from tests.support.faults.load import AFTERWARDS
from tests.support.faults.mailbox_clients import acknowledge, acknowledge_late, give_back_some, never_acknowledge
from tests.support.faults.mailbox_figures import FetchRecord, in_hand
from tests.support.faults.mailbox_load import LONG, MailboxLoad
from tests.support.real_broker import Broker, database_now, wait_until_polling

pytestmark = [pytest.mark.behaviour("9.2"), pytest.mark.behaviour("9.3")]

PROCESSES = 8
KILLS = 5

SWITCHES = 6
HELD = 10
LEFT = 10

PURGES = 40
BETWEEN = 5
"""Events published between two of them."""

MAX_WAIT = 20
WEB_KILLS = 3


FETCHING = """
    SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%WITH box AS%%'
"""
LEAVES = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'delivery_message'::regclass"


def kill_a_holder(box: MailboxLoad, *, but: Collection[str]) -> list[FetchRecord]:
    """Kill the process with the newest message except those in `but`; return the messages that are lost with it."""

    def had() -> list[FetchRecord]:
        return [one for one in in_hand(box.records()) if one.receipt not in but]

    wait_until(had)
    victim = max(had() or box.handed(), key=lambda one: one.begun).client
    box.processes[victim].kill()
    box.processes[victim].wait()
    lost = [one for one in had() if one.client == victim]
    box.start_process(victim)
    return lost


@pytest.mark.case("mailbox-consumers-killed")
def test_clients_are_killed_while_others_fetch(box: MailboxLoad) -> None:
    for number in range(PROCESSES):
        box.start_process(f"process-{number + 1}")
    box.start()
    lost: dict[str, FetchRecord] = {}
    for _ in range(KILLS):
        lost |= {one.receipt: one for one in kill_a_holder(box, but=lost)}
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


@pytest.mark.behaviour("9.4", "11.3")
@pytest.mark.case("mailbox-postgresql-restarted")
def test_postgresql_is_restarted_between_fetch_and_acknowledgement(box: MailboxLoad) -> None:
    box.hold_for(LONG)
    box.start()
    holder = box.client(never_acknowledge, most=HELD)
    held = holder.some_receipts()
    postgres = box.broker.stack.supervisor["postgres"]
    with restarted(postgres):
        send(signal.SIGQUIT, postgres)
    statuses = [result.status for result in holder.say("ack", held)]
    box.read_by(acknowledge)
    box.wait_for(AFTERWARDS)
    box.stop()
    assert statuses == [200] * HELD
    assert box.figures().broken == {}


@pytest.mark.behaviour("9.8")
@pytest.mark.case("mailbox-switched")
def test_a_subscription_is_switched_again_and_again_under_load(box: MailboxLoad) -> None:
    subscription = box.broker.subscription(box.subscriber)
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
def test_messages_expire_after_four_days_but_not_while_in_flight(box: MailboxLoad) -> None:
    box.hold_for(LONG)
    singly, _ = box.publishers
    for _ in range(HELD):
        singly.publish()
    holder = box.client(never_acknowledge, most=HELD)
    held = holder.some_receipts()
    for _ in range(LEFT):
        singly.publish()
    aged = box.broker.ask(AGED, name=box.subscriber)
    wait_until(lambda: box.look_for_dropped() or len(box.dropped) == LEFT)  # type: ignore[func-returns-value]
    statuses = [result.status for result in holder.say("ack", held)]
    box.stop()
    assert len(aged) == HELD + LEFT
    assert box.dropped == {event.number for event in singly.published[HELD:]}
    assert statuses == [200] * HELD
    assert box.figures().broken == {}


@pytest.mark.behaviour("9.7")
@pytest.mark.case("mailbox-purged")
def test_a_mailbox_is_purged_again_and_again_under_its_clients(box: MailboxLoad) -> None:
    mailbox = Mailbox(box.broker.web, box.subscriber, box.token)
    box.publishers[0].publish()
    assert mailbox.purge() == {"cancelled": 1, "in_flight": 0, "complete": True}
    box.read_by(acknowledge, give_back_some, give_back_some, acknowledge_late, never_acknowledge)
    box.start()
    purges = []
    for _ in range(PURGES):
        box.wait_for(BETWEEN)
        purges.append(mailbox.purge())
    box.stop_publishing()
    purges.append(mailbox.purge())
    purged_at = time.time()
    left = mailbox.status()
    box.stop()
    assert all(purge["complete"] for purge in purges)
    assert (left["available"], left["waiting"]) == (0, 0)
    assert [one for one in box.handed() if one.begun > purged_at] == []
    assert [client.refused for client in box.clients] == [[]] * len(box.clients)
    assert any(purge["in_flight"] for purge in purges)
    assert {"acknowledged", "returned", "cancelled"} <= {one.code for one in box.said("ack") + box.said("nack")}
    assert box.figures().broken == {}


HANDED_OUT = """
    SELECT FROM delivery_open delivery
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscription.subscriber_id
    WHERE subscriber.name = %(name)s AND delivery.fetched_until IS NOT NULL
"""


@contextlib.contextmanager
def bodies_withheld(broker: Broker) -> Iterator[None]:
    """Lock all messages inside: a running fetch waits.

    Only the partitions are locked: a statement that waited for the table itself would not have begun to run.
    """
    with psycopg.connect(broker.stack.environment["DATABASE_URL"]) as connection:
        leaves = ", ".join(leaf for (leaf,) in connection.execute(LEAVES))
        connection.execute(f"LOCK TABLE {leaves} IN ACCESS EXCLUSIVE MODE".encode())
        yield
        connection.rollback()


@pytest.mark.behaviour("9.1", "11.3")
@pytest.mark.case("mailbox-web-killed")
def test_the_web_process_is_killed_while_clients_fetch_and_wait(box: MailboxLoad) -> None:
    web, since = box.broker.stack.supervisor["web"], database_now(box.broker)
    waiting = box.client(acknowledge, wait=MAX_WAIT)
    waiting.start()
    wait_until_polling(box.broker, since)
    with away(web):
        pass
    box.publishers[0].publish()
    wait_until(lambda: box.said("ack"))
    waiting.enough.set()
    box.read_by(acknowledge, give_back_some)
    box.start()
    for _ in range(WEB_KILLS):
        with away(web):
            pass
        box.wait_for(AFTERWARDS)
    box.stop()
    assert box.figures().broken == {}


@pytest.mark.behaviour("9.1", "11.3")
@pytest.mark.case("mailbox-answer-lost")
def test_messages_of_a_lost_answer_are_redelivered(box: MailboxLoad) -> None:
    box.publishers[0].publish()
    web = box.broker.stack.supervisor["web"]
    with contextlib.ExitStack() as broken:
        with bodies_withheld(box.broker):
            box.client(acknowledge).start()
            wait_until(lambda: box.broker.ask(FETCHING))
            broken.enter_context(frozen(web))
        wait_until(lambda: box.broker.ask(HANDED_OUT, name=box.subscriber))
        broken.enter_context(away(web))
    box.stop()
    assert [one.redeliveries for one in box.handed()] == [1]
    assert box.figures().broken == {}


@pytest.mark.behaviour("9.1")
@pytest.mark.case("mailbox-redis-away")
def test_a_poll_gets_the_next_message_without_redis(box: MailboxLoad) -> None:
    flush_redis(box.broker)
    with away(box.broker.stack.supervisor["redis"]):
        waiting, since = box.client(acknowledge, wait=MAX_WAIT), database_now(box.broker)
        got: list[Sequence[str]] = []
        poll = threading.Thread(target=lambda: got.append(waiting.receipts()))
        poll.start()
        wait_until_polling(box.broker, since)
        box.publishers[0].publish()
        poll.join(PATIENCE_SECONDS)
        waiting.say("ack", got[0])
    box.read_by(acknowledge)
    box.start()
    box.stop()
    assert len(got[0]) == 1
    assert box.figures().broken == {}
