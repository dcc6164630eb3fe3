"""The audit of the fault suite finds faults that are written into the database of a real broker."""

import pytest

from broker_project.stack.load.receiver import Receiver
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
    for number in range(EVENTS):
        broker.publish(event_type, b"%d" % number).raise_for_status()
    wait_until(lambda: broker.has_finished([spared, harmed]), TIMEOUT_SECONDS)
    first, second, last = (delivery for (delivery,) in broker.ask(IDS, name=harmed.name))
    assert len(broker.ask(SWAPPED, first=first, second=second)) == 2
    assert broker.ask(SENT_AFTER_ITS_ANSWER, delivery=last) == [(last,)]
    verdict = Verdict("planted")
    verdict.take(history.audit())
    said = verdict.as_object()
    counts = [said[name] for name in ("audited", "numbered", "explained", "unexplained")]
    assert counts == [2 * EVENTS, 2 * EVENTS, 0, 2]
    assert (said["passed"], said["reason"]) == (
        False,
        f"audit: unexplained 2: inversion (delivery {first} after {second}), sent again (delivery {last})",
    )
    broker.inactivate_all()
