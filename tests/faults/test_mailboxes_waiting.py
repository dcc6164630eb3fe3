"""Clients of a mailbox that wait, or for an answer, while the web process is killed or Redis is away."""

import contextlib
import threading
from collections.abc import Iterator, Sequence

import psycopg
import pytest

from tests.support.faults.breakage import away, flush_redis, frozen
from tests.support.faults.load import AFTERWARDS
from tests.support.faults.mailbox_clients import acknowledge, give_back_some
from tests.support.faults.mailbox_load import Box
from tests.support.real_broker import Broker, now, wait_until_somebody_waits
from tests.support.receiver import PATIENCE, wait_until

pytestmark = [pytest.mark.behaviour("9.1"), pytest.mark.behaviour("9.2"), pytest.mark.behaviour("9.3")]

LONGEST_WAIT = 20
WEB_KILLS = 3
HANDED_OUT = """
    SELECT FROM delivery_open delivery
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscription.subscriber_id
    WHERE subscriber.name = %(name)s AND delivery.fetched_until IS NOT NULL
"""


FETCHING = """
    SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%WITH box AS%%'
"""
LEAVES = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'delivery_message'::regclass"


@contextlib.contextmanager
def bodies_withheld(broker: Broker) -> Iterator[None]:
    """Let nobody read a message inside: a fetch that runs waits.

    Only the partitions are locked: a statement that waited for the table itself would not have begun to run.
    """
    with psycopg.connect(broker.stack.environment["DATABASE_URL"]) as connection:
        leaves = ", ".join(leaf for (leaf,) in connection.execute(LEAVES))
        connection.execute(f"LOCK TABLE {leaves} IN ACCESS EXCLUSIVE MODE".encode())
        yield
        connection.rollback()


@pytest.mark.behaviour("11.3")
@pytest.mark.case("mailbox-web-killed")
def test_the_web_process_is_killed_while_clients_fetch_and_wait(box: Box) -> None:
    web, since = box.broker.stack.supervisor["web"], now(box.broker)
    waiting = box.client(acknowledge, wait=LONGEST_WAIT)
    waiting.start()
    wait_until_somebody_waits(box.broker, since)
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


@pytest.mark.behaviour("11.3")
@pytest.mark.case("mailbox-answer-lost")
def test_what_was_handed_out_and_not_answered_before_the_web_process_was_killed_comes_again(box: Box) -> None:
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


@pytest.mark.case("mailbox-redis-away")
def test_whoever_waits_gets_the_next_message_without_redis(box: Box) -> None:
    flush_redis(box.broker)
    with away(box.broker.stack.supervisor["redis"]):
        waiting, since = box.client(acknowledge, wait=LONGEST_WAIT), now(box.broker)
        got: list[Sequence[str]] = []
        poll = threading.Thread(target=lambda: got.append(waiting.receipts()))
        poll.start()
        wait_until_somebody_waits(box.broker, since)
        box.publishers[0].publish()
        poll.join(PATIENCE)
        waiting.say("ack", got[0])
    box.read_by(acknowledge)
    box.start()
    box.stop()
    assert len(got[0]) == 1
    assert box.figures().broken == {}
