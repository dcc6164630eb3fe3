"""The audit of the fault suite finds faults that are written into the database of a real broker."""

from datetime import UTC, datetime, timedelta

import pytest
import requests

from broker_project.stack.load.receiver import Receiver, answer
from broker_project.stack.load.wait import wait_until
from tests.support.faults.audit import Since
from tests.support.faults.verdicts import Verdict
from tests.support.real_broker import TIMEOUT_SECONDS, Broker

pytestmark = [pytest.mark.faults, pytest.mark.lengthy]

EVENTS = 3
IDS = """
    SELECT delivery.id FROM delivery_delivery delivery
    JOIN subscriptions_subscription subscription ON subscription.id = delivery.subscription_id
    JOIN subscriptions_subscriber subscriber ON subscriber.id = subscription.subscriber_id
    WHERE subscriber.name = %(name)s ORDER BY delivery.id
"""
SWAPPED = """
    UPDATE delivery_delivery one SET sequence = other.sequence,
           created_at = CASE WHEN one.id < other.id THEN other.created_at - interval '1 minute' ELSE one.created_at END
      FROM delivery_delivery other
     WHERE one.id IN (%(first)s, %(second)s) AND other.id = %(first)s + %(second)s - one.id
 RETURNING one.id
"""
"""The second was sent first, though its publish began a minute after that of the first."""
SENT_AFTER_ITS_ANSWER = """
    INSERT INTO delivery_attempt (delivery_id, number, started_at, duration_ms, status_code, error, answer_headers,
                                  answer_excerpt)
    SELECT delivery_id, number + 1, clock_timestamp(), duration_ms, status_code, error, answer_headers, answer_excerpt
      FROM delivery_attempt WHERE delivery_id = %(delivery)s
 RETURNING delivery_id
"""


@pytest.mark.behaviour("4.10", "4.11")
def test_a_planted_inversion_and_a_planted_duplicate_fail_the_audit(broker: Broker, receiver: Receiver) -> None:
    history, event_type = Since(broker), broker.event_type()
    spared, harmed = (broker.subscribe(receiver.url(path), event_type) for path in ("/spared", "/harmed"))
    with broker.publisher() as publisher:
        for number in range(EVENTS):
            publish(broker, publisher, event_type, number)
    wait_until(lambda: broker.has_finished([spared, harmed]), TIMEOUT_SECONDS)
    first, second, last = (delivery for (delivery,) in broker.ask(IDS, name=harmed.name))
    assert len(broker.ask(SWAPPED, first=first, second=second)) == 2
    assert broker.ask(SENT_AFTER_ITS_ANSWER, delivery=last) == [(last,)]
    verdict = Verdict("planted")
    verdict.take(history.audit())
    said = verdict.as_object()
    assert [said[name] for name in ("audited", "numbered", "explained", "unexplained")] == [
        2 * EVENTS,
        2 * EVENTS,
        0,
        2,
    ]
    assert (said["passed"], said["reason"]) == (
        False,
        f"audit: unexplained 2: inversion (delivery {first} after {second}), sent again (delivery {last})",
    )
    broker.inactivate_all()


@pytest.mark.behaviour("4.10", "4.11", "5.3")
def test_late_paused_and_retried_deliveries_are_explained_but_faults_among_them_are_not(
    broker: Broker, receiver: Receiver
) -> None:
    history, event_types = Since(broker), [broker.event_type() for _ in range(2)]
    apart = broker.retry_policy(
        on_client_error="RETRY_LANE", initial_delay_seconds=0.1, max_retries=3, on_exhausted="FAIL"
    )
    subscriber = broker.subscribe(receiver.url("/late"), *event_types, retry_policy=apart)
    paused, other = event_types
    subscription = broker.management.every("subscriptions", subscriber=subscriber.name, event_type=paused)
    page = f"subscriptions/{next(subscription)['id']}"
    receiver.on("/late", answer(404), answer())
    with broker.publisher() as publisher:
        publish(broker, publisher, paused, 0)
        publish(broker, publisher, paused, 1, delay=2.0)
        publish(broker, publisher, other, 2)
        wait_until(lambda: broker.has_finished([subscriber]), TIMEOUT_SECONDS)
        broker.management.create(f"{page}/pause")
        publish(broker, publisher, paused, 3)
        publish(broker, publisher, paused, 4)
        publish(broker, publisher, other, 5)
        wait_until(lambda: broker.unfinished([subscriber]) == 2, TIMEOUT_SECONDS)
        broker.management.create(f"{page}/resume")
    wait_until(lambda: broker.has_finished([subscriber]), TIMEOUT_SECONDS)
    found = history.audit()
    assert (found.audited, found.numbered, found.unexplained) == (6, 6, 0), found.named
    assert found.explanations == ("not active or paused", "not yet due")
    again, _, _, first, second, _ = (delivery for (delivery,) in broker.ask(IDS, name=subscriber.name))
    assert len(broker.ask(SWAPPED, first=first, second=second)) == 2
    assert broker.ask(SENT_AFTER_ITS_ANSWER, delivery=again) == [(again,)] * 2
    assert history.audit().problem.startswith("unexplained 2: ")
    broker.inactivate_all()


def publish(
    broker: Broker, publisher: requests.Session, event_type: str, number: int, *, delay: float | None = None
) -> None:
    headers = {"Broker-Not-Before": (datetime.now(UTC) + timedelta(seconds=delay)).isoformat()} if delay else {}
    address = f"{broker.web}/api/v1/events/{event_type}"
    publisher.post(address, json={"number": number}, headers=headers, timeout=TIMEOUT_SECONDS).raise_for_status()
